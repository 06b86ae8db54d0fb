"""From a timeline to trained models: program (what to do), oracle (plainly), event_loop and waves (compiled)."""
