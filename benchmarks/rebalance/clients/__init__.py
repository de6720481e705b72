"""One module per client library; ``Member.java`` is the same in Java.

Each has ``version()`` and ``consume(member, application)``, which polls until
``application.stopping`` and calls the application back as ``application`` describes.
"""
