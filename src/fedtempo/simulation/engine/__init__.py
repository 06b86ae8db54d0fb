"""From a timeline to trained models: program (what to do), oracle (plainly), events and waves (compiled)."""
