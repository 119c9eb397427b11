"""Relax operators of our own: values that are checked before they are used as indices; LSTM, GRU and RNN;
attention whose mask takes the place of scores; sums of bytes."""
