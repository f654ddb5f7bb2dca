"""Every port in virtual time: scripted engines and faults, for tests and for planning."""
