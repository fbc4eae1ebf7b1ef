// ManualPage: the page of `man longshore`, generated from the tables of commands, keys and exit
// codes. Pure function.
#pragma once

#include <string>

#include "trainer/commands/command_tree.h"

namespace longshore {

std::string manual_page(const CommandHelp& program);

}  // namespace longshore
