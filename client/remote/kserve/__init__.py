"""The client of any server of the Open Inference Protocol: its model as a system under test."""
