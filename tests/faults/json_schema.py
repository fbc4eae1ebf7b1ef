"""As much of JSON Schema as `longshore config schema` uses, to check values against it."""


class Mismatch(Exception):
    pass


TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def is_type(name, value):
    if name == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if name == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, TYPES[name])


def check(schema, value, where="line", known_only=False):
    """Mismatch where the value is not as the schema says; with `known_only` members that it does
    not name are mistakes too."""
    for word in schema:
        if word not in ("$schema", "title", "description", "type", "const", "minimum", "required",
                        "properties", "additionalProperties", "items", "oneOf", "x-tag"):
            raise Mismatch(f"{where}: the schema's {word} is not known here")
    if "const" in schema and value != schema["const"]:
        raise Mismatch(f"{where}: {value!r} is not {schema['const']!r}")
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(is_type(name, value) for name in types):
        raise Mismatch(f"{where}: {value!r} is no {types}")
    if "minimum" in schema and value < schema["minimum"]:
        raise Mismatch(f"{where}: {value!r} is below {schema['minimum']}")
    if isinstance(value, dict):
        check_object(schema, value, where, known_only)
    if isinstance(value, list) and "items" in schema:
        for index, element in enumerate(value):
            check(schema["items"], element, f"{where}[{index}]", known_only)
    if "oneOf" in schema:
        reasons = []
        for choice in schema["oneOf"]:
            try:
                check(choice, value, where, known_only)
            except Mismatch as mismatch:
                reasons.append(str(mismatch))
        if len(schema["oneOf"]) - len(reasons) != 1:
            raise Mismatch(f"{value!r} is not just one of the choices: {reasons}")


def check_object(schema, value, where, known_only):
    for name in schema.get("required", []):
        if name not in value:
            raise Mismatch(f"{where}: {name} is missing")
    named, others = schema.get("properties", {}), schema.get("additionalProperties")
    for name, member in value.items():
        if name in named:
            check(named[name], member, f"{where}.{name}", known_only)
        elif isinstance(others, dict):
            check(others, member, f"{where}.{name}", known_only)
        elif others is False or (known_only and named):
            raise Mismatch(f"{where}: {name} is not in the schema")
