KIND: str
REQUIRED: list[str]
