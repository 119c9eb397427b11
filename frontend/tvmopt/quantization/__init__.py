"""`tvmopt quantize`: a float model and data in, a QDQ model out, with what each layer loses."""
