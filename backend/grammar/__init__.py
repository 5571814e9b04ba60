"""Constrained decoding: from a grammar a caller asks for to masks, matchers and verdicts.

lowering    what cannot be enforced exactly is refused by name, or rewritten so that it is enforced
worker      compilation in a process of its own, which a time limit can end
constraint  the state of one run, by its tokens: allowed tokens, forced text, the end
verdict     what an independent reader says about the result
"""
