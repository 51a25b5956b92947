"""LSTM layers spread over workers: schedules, their execution, and who owns which parameter."""
