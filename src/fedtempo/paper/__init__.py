"""The paper's section 5 and appendix D: its figures, run and drawn again, and what of its statements holds."""
