// BlockBuffer: a few blocks of zeroed, block-aligned memory for manifests, tables and probes. The
// maker owns it; move-only. Bulk data uses the I/O window instead.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>

#include "nvme/drive/block_file.h"

namespace longshore {

class BlockBuffer {
 public:
  BlockBuffer() = default;
  // The size is rounded up to whole blocks.
  explicit BlockBuffer(Bytes bytes)
      : size_(static_cast<size_t>(align_up(bytes, kBlockBytes))),
        memory_(
            static_cast<std::byte*>(std::aligned_alloc(static_cast<size_t>(kBlockBytes), size_))) {
    if (memory_ == nullptr && size_ > 0) throw std::bad_alloc();
    if (size_ > 0) std::memset(memory_.get(), 0, size_);
  }

  std::span<std::byte> bytes() const { return {memory_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  size_t size_ = 0;
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace longshore
