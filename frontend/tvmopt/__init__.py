"""tvmopt: ONNX in; a fast, checked, explained module out - an auto-scheduling compiler front end on Apache TVM."""

__version__ = "0.1.0"
