"""What stands before and behind a model in a program that uses it, written into the model - for `tvmopt.compile`.

picture     what a user asks for: pictures in, in one line of text
config      the same from a Hugging Face `preprocessor_config.json`
stages      the ONNX model with these stages as nodes
scores      what a user asks for behind the model: probabilities, the largest of them, their names
boxes       what a user asks for behind a detector: which of its boxes are kept
behind      the ONNX model with scores as nodes
detections  the ONNX model with the selection of boxes as nodes
"""
