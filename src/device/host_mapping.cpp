#include "device/host_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/errors.h"

namespace longshore {
namespace {

constexpr Bytes kHugePageBytes = 2 * kMiB;

std::string limit_text(const char* name, int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return "";
  if (limit.rlim_cur == RLIM_INFINITY) return "";
  return std::string("; ") + name + " is " + format_bytes(static_cast<Bytes>(limit.rlim_cur));
}

[[noreturn]] void throw_refused(Bytes bytes, const std::string& purpose, int error) {
  throw OutOfMemoryError(purpose + ": the system refused to map " + format_bytes(bytes) + " (" +
                         std::strerror(error) +
                         limit_text("the address space limit (ulimit -v)", RLIMIT_AS) +
                         limit_text("the data limit (ulimit -d)", RLIMIT_DATA) +
                         limit_text("the locked memory limit (ulimit -l)", RLIMIT_MEMLOCK) +
                         "); raise the limit or lower offload.host_memory");
}

void unmap(std::byte* begin, std::byte* end) {
  if (begin < end) munmap(begin, static_cast<size_t>(end - begin));
}

// Maps `bytes` (whole pages) at a multiple of kHugePageBytes: maps kHugePageBytes more and unmaps
// both ends.
std::byte* map_at_huge_page(Bytes bytes) {
  const size_t reserved = static_cast<size_t>(bytes + kHugePageBytes);
  void* address =
      mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  auto* whole = static_cast<std::byte*>(address);
  const auto place = reinterpret_cast<uintptr_t>(whole);
  std::byte* begin =
      whole + (align_up(static_cast<int64_t>(place), kHugePageBytes) - static_cast<int64_t>(place));
  unmap(whole, begin);
  unmap(begin + bytes, whole + reserved);
  return begin;
}

}  // namespace

HostMapping::HostMapping(Bytes bytes, const std::string& purpose) {
  LONGSHORE_CHECK(bytes >= 0) << purpose;
  if (bytes == 0) return;
  const auto rounded = checked_add(bytes, sysconf(_SC_PAGESIZE) + kHugePageBytes);
  if (!rounded) throw_refused(bytes, purpose, ENOMEM);
  mapped_ = align_up(bytes, sysconf(_SC_PAGESIZE));
  data_ = map_at_huge_page(mapped_);
  if (data_ == nullptr) throw_refused(bytes, purpose, errno);
  size_ = bytes;
  // This may fail without effect: a kernel without transparent huge pages uses small ones.
  madvise(data_, static_cast<size_t>(mapped_), MADV_HUGEPAGE);
}

HostMapping HostMapping::shared(Bytes bytes, const std::string& purpose) {
  LONGSHORE_CHECK(bytes >= 0) << purpose;
  HostMapping mapping;
  if (bytes == 0) return mapping;
  mapping.descriptor_ = UniqueFd(memfd_create("longshore", MFD_CLOEXEC), purpose);
  if (!mapping.descriptor_.valid()) throw_refused(bytes, purpose, errno);
  const Bytes rounded = align_up(bytes, sysconf(_SC_PAGESIZE));
  if (ftruncate(mapping.descriptor_.get(), rounded) != 0) throw_refused(bytes, purpose, errno);
  mapping.map_shared(mapping.descriptor_, PROT_READ | PROT_WRITE, bytes, purpose);
  madvise(mapping.data_, static_cast<size_t>(mapping.mapped_), MADV_HUGEPAGE);
  return mapping;
}

HostMapping HostMapping::of_process(int process, int descriptor, Bytes bytes,
                                    const std::string& purpose, bool writable) {
  HostMapping mapping;
  if (bytes == 0) return mapping;
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
  const UniqueFd fd =
      writable ? UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC), path) : open_for_reading(path);
  if (!fd.valid()) throw IoError("open", path, errno);
  const Bytes rounded = align_up(bytes, sysconf(_SC_PAGESIZE));
  if (file_bytes(fd) != rounded) {
    throw IoError("map " + path + ": " + purpose + " has " + std::to_string(file_bytes(fd)) +
                  " bytes, not " + std::to_string(rounded));
  }
  mapping.map_shared(fd, writable ? PROT_READ | PROT_WRITE : PROT_READ, bytes, purpose);
  return mapping;
}

void HostMapping::map_shared(const UniqueFd& fd, int protection, Bytes bytes,
                             const std::string& purpose) {
  const Bytes rounded = align_up(bytes, sysconf(_SC_PAGESIZE));
  void* const data =
      mmap(nullptr, static_cast<size_t>(rounded), protection, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) throw_refused(bytes, purpose, errno);
  data_ = static_cast<std::byte*>(data);
  size_ = bytes;
  mapped_ = rounded;
}

HostMapping::~HostMapping() {
  unmap(data_, data_ + mapped_);
}

HostMapping::HostMapping(HostMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, 0)),
      descriptor_(std::move(other.descriptor_)) {}

HostMapping& HostMapping::operator=(HostMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

Bytes huge_page_bytes(std::span<const std::byte> range) {
  const auto begin = reinterpret_cast<uintptr_t>(range.data());
  const uintptr_t end = begin + range.size();
  std::ifstream smaps("/proc/self/smaps");
  Bytes sum = 0;
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long from = 0;
    unsigned long to = 0;
    long kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2) {
      inside = from < end && to > begin;
    } else if (inside && (std::sscanf(line.c_str(), "AnonHugePages: %ld kB", &kib) == 1 ||
                          std::sscanf(line.c_str(), "ShmemPmdMapped: %ld kB", &kib) == 1)) {
      sum += Bytes{kib} * kKiB;
    }
  }
  return sum;
}

}  // namespace longshore
