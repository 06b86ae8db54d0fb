"""The work of a job: K local steps from the model that the client was sent (section 2.1)."""
