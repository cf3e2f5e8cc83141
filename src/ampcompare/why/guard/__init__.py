"""Which modules have to stay in fp32: `search` finds a smallest set, `trials` asks by short runs of a sweep,
`modules` says what there is to choose from, `costs` what keeping costs, `command` puts them together.
"""
