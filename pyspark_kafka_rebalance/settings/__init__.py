"""User input as checked values: the Java client's settings, security, JAAS, key stores."""
