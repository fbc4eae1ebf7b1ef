// The machines that config/machines describes, by name: "rtx-4090". parse_machine reads a text.
#pragma once

#include <span>

#include "base/named_text.h"

namespace longshore {

std::span<const NamedText> common_machines();

}  // namespace longshore
