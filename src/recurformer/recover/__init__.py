"""Recovery: a converted model learns from its original, in closed form, layer by layer and end to end.

Each step works alone on any converted model: `calibrate` (forward passes only), `transfer` (the mixers alone against
the original's head outputs), `distil` (the whole model against the original's predictions). `adapt` does all of it to a
model that is not converted yet.
"""
