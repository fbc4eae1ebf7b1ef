// libFuzzer's entry: searches for inputs that the target of --target=NAME does not survive.
// Compiled by clang alone (tests/fuzz/fuzz.cmake).
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/fuzz_targets.h"

namespace {

const longshore::FuzzTarget* chosen = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (const longshore::FuzzTarget& target : longshore::fuzz_targets()) {
    for (int i = 1; i < *argc; ++i) {
      if ((*argv)[i] == std::string("--target=") + target.name) chosen = &target;
    }
  }
  if (chosen != nullptr) return 0;
  std::fputs("search: --target=NAME names a folder of tests/fuzz/corpus\n", stderr);
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  longshore::accepts(*chosen, {reinterpret_cast<const char*>(data), size});
  return 0;
}
