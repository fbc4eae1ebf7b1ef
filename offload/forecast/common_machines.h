// common_machines: the machines of config/machines, by name ("rtx-4090"), for parse_machine.
#pragma once

#include <span>

#include "base/texts.h"

namespace longshore {

std::span<const NamedText> common_machines();

}  // namespace longshore
