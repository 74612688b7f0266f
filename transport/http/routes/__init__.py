"""The routes of the HTTP side, one router a file. Each is a function of what it needs; none knows another."""
