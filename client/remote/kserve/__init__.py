"""The client of any server of the Open Inference Protocol, with its model as a system under test."""
