// The machines that config/machines describes, by name. Constants of the program.
#pragma once

#include <span>
#include <string_view>

namespace longshore {

struct CommonMachine {
  std::string_view name;  // "rtx-4090"
  std::string_view text;  // of its file; parse_machine reads it
};
// Sorted by name.
std::span<const CommonMachine> common_machines();

}  // namespace longshore
