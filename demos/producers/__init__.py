"""The demo of producer groups: a database read by instances that join, leave, stall and die.

``python -m demos.producers`` shows it live, draws a picture, and compares
the tables with the topics at the end.
"""
