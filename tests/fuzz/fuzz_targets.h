// Fuzz targets: one for each parser of bytes from outside. A target reads its input as the program
// would and checks that an accepted input has the properties that the parser promises.
// replay_test.cpp runs all of them over tests/fuzz/corpus/<name> in any compiler; search.cpp runs
// one under libFuzzer (scripts/dev/long fuzz). Plain functions; one thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "base/file.h"
#include "text/tokenizer.h"

namespace longshore {

struct FuzzTarget {
  const char* name;  // of the folder of its corpus
  // Returns true if the input is accepted, else false or an Error other than CheckFailure.
  bool (*run)(std::string_view bytes);
};

std::span<const FuzzTarget> fuzz_targets();

// Returns whether the target accepts the input. An exception is a finding.
bool accepts(const FuzzTarget& target, std::string_view bytes);

// Returns the parts between the bytes 0x1E, of which JSON has none; at most `most` parts.
std::vector<std::string> parts_of(std::string_view bytes, size_t most);

// MemoryFile: a regular file of memory that has a path while the object exists.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes);
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_.get()); }
  // Returns another descriptor of the file.
  UniqueFd open() const { return open_for_reading(path()); }

 private:
  UniqueFd fd_;
};

// Returns a directory of this process with these files, and no others. The next call changes it.
std::string directory_with(const std::vector<std::pair<std::string_view, std::string>>& files);

// Returns the tokenizer of bytes that rows and templates are read with.
const Tokenizer& byte_level_tokenizer();

}  // namespace longshore
