"""Why a comparison came out so: what a step costs and in which types its ops run (`explain`), where a backend
leaves fp32 (`diff`), which modules must stay in fp32 (`guard`).

`setting` builds the training as a run does; `types`, `memory` and `times` are what explain sees of it,
`observe` what diff does. It loads torch, so nothing that reads records may import it.
"""
