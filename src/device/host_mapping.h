// HostMapping: memory of the host, mapped exactly as large as asked and given back by its
// destructor. Owned by the arena that is cut from it. Any thread.
//
// Anonymous, or shared: other processes of the machine may map the same bytes, to read them.
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
  // Zero-filled. `purpose` names the memory in errors ("host tier", "device arena"). Huge pages are
  // asked for where the mapping is large enough; `huge_page_bytes` tells what came of it. Throws
  // OutOfMemoryError, with the limits that apply, when the system refuses.
  HostMapping(Bytes bytes, const std::string& purpose);
  // Zero-filled memory that other processes can map too (memfd); errors as the constructor's.
  static HostMapping shared(Bytes bytes, const std::string& purpose);
  // What another process of this user, which must live, shared as `descriptor`, to be read alone.
  // `writable`: mapped to be written too, for who must map it so. IoError where it cannot be had or
  // has another size.
  static HostMapping of_process(int process, int descriptor, Bytes bytes,
                                const std::string& purpose, bool writable = false);
  ~HostMapping();
  HostMapping(HostMapping&& other) noexcept;
  HostMapping& operator=(HostMapping&& other) noexcept;

  std::span<std::byte> bytes() const { return {data_, static_cast<size_t>(size_)}; }
  Bytes size_bytes() const { return size_; }
  // Of shared memory, for of_process() in other processes; else -1.
  int descriptor() const { return descriptor_.get(); }

 private:
  void map_shared(const UniqueFd& fd, int protection, Bytes bytes, const std::string& purpose);

  std::byte* data_ = nullptr;
  Bytes size_ = 0;    // as asked for
  Bytes mapped_ = 0;  // whole pages
  UniqueFd descriptor_;
};

// How many bytes of the range the kernel has backed with huge pages so far (/proc/self/smaps); 0
// where that cannot be read.
Bytes huge_page_bytes(std::span<const std::byte> range);

}  // namespace longshore
