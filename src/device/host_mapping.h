// HostMapping: a mapping of host memory of exactly the requested size, unmapped by its destructor.
// Owned by the arena that is cut from it. Any thread. It is anonymous, or shared so that other
// processes of the machine can map the same bytes.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/file.h"

namespace longshore {

class HostMapping {
 public:
  HostMapping() = default;  // empty
  // Maps zero-filled memory and asks for huge pages; huge_page_bytes() reports how many the kernel
  // gave. `purpose` names the memory in errors ("host tier", "device arena"). Throws
  // OutOfMemoryError, with the limits that apply, if the system refuses.
  HostMapping(Bytes bytes, const std::string& purpose);
  // Maps zero-filled memory that other processes can map too (memfd); errors as the constructor's.
  static HostMapping shared(Bytes bytes, const std::string& purpose);
  // Maps, read-only unless `writable`, the memory that another live process of this user shares as
  // `descriptor`. Throws IoError if it cannot be opened or has another size.
  static HostMapping of_process(int process, int descriptor, Bytes bytes,
                                const std::string& purpose, bool writable = false);
  ~HostMapping();
  HostMapping(HostMapping&& other) noexcept;
  HostMapping& operator=(HostMapping&& other) noexcept;

  std::span<std::byte> bytes() const { return {data_, static_cast<size_t>(size_)}; }
  Bytes size_bytes() const { return size_; }
  // Returns the descriptor of memory from shared(), for of_process() in other processes; else -1.
  int descriptor() const { return descriptor_.get(); }

 private:
  void map_shared(const UniqueFd& fd, int protection, Bytes bytes, const std::string& purpose);

  std::byte* data_ = nullptr;
  Bytes size_ = 0;    // as requested
  Bytes mapped_ = 0;  // whole pages
  UniqueFd descriptor_;
};

// Returns the bytes that the kernel has backed with huge pages so far, in all mappings that overlap
// the range (/proc/self/smaps), anonymous and shared; 0 if that cannot be read.
Bytes huge_page_bytes(std::span<const std::byte> range);

}  // namespace longshore
