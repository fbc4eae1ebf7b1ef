// The commit of the sources that this program was built from; trainer/CMakeLists.txt makes it at
// each build. Constant.
#pragma once

#include <string>

namespace longshore {

// Returns the first 12 digits of the hash, followed by "+" if files were changed since; empty if
// the sources were no git checkout.
std::string source_commit();

}  // namespace longshore
