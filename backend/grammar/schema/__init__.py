"""A JSON Schema rewritten into a small form that engines enforce exactly, or refused by name.

The small form has: true; enum of plain values; null, boolean; integer and number with bounds; string,
free or by pattern; array with prefixItems, items and lengths; object that is closed, or a map; anyOf; $ref to
#/$defs. Everything else is rewritten into these (allOf merged, enums filtered, formats as patterns, lengths
worked into patterns), narrowed with a note, or refused with its keyword and JSON pointer. Narrowing is always
on the safe side: what can be produced is valid, but not every valid text can be produced.

drafts      older drafts as 2020-12
keywords    what is known, refused, or without effect
references  what a $ref names, and whether references lead anywhere
merging     several schemas that all hold, as one
shapes      strings, numbers, arrays and objects in the small form
exclusion   whether alternatives exclude each other
admission   one schema, from its top
"""
