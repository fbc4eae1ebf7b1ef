// Where tests find their files and the program: beside the test binary where it was unpacked from a
// bundle (bin/test_x, bin/longshore, tests/), else where it was built.
#pragma once

#include <filesystem>
#include <string>

extern const char kTestData[];  // made by tests/CMakeLists.txt

namespace longshore {

inline std::filesystem::path binary_directory() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

// The folder that is tests/ in the repository.
inline std::string test_data() {
  const std::filesystem::path bundled = binary_directory().parent_path() / "tests" / "parity";
  if (std::filesystem::exists(bundled / "golden")) return bundled.parent_path();
  return kTestData;
}

}  // namespace longshore
