// ScratchDirectory: a directory for one test, removed by its destructor; test bytes. One thread.
#pragma once

#include <stdlib.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/file.h"
#include "nvme/drive/block_file.h"
#include "tests/nvme/sim_disk.h"

namespace longshore {

class ScratchDirectory {
 public:
  ScratchDirectory() {
    char name[] = "/tmp/longshore-nvme-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~ScratchDirectory() { remove_tree(path_); }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline void fill_random(std::span<std::byte> memory, uint64_t seed) {
  SimRandom random(seed);
  for (size_t i = 0; i + 8 <= memory.size(); i += 8) {
    const uint64_t value = random.next();
    std::memcpy(memory.data() + i, &value, sizeof(value));
  }
}

inline bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace longshore
