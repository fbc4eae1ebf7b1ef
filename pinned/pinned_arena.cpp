#include "pinned/pinned_arena.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "base/file.h"
#include "base/log.h"

namespace longshore {
namespace {

// One task touches this many bytes, enough to outweigh the cost of a task.
constexpr size_t kTouchBlockBytes = 64 * static_cast<size_t>(kMiB);
constexpr size_t kSmallPageBytes = 4096;
// The log says of arenas of at least this size how much of them is in huge pages.
constexpr Bytes kLargeArenaBytes = kGiB;

void touch(std::span<std::byte> memory, WorkerPool& pool) {
  Progress progress("preparing host memory", static_cast<Bytes>(memory.size()));
  const size_t blocks = (memory.size() + kTouchBlockBytes - 1) / kTouchBlockBytes;
  pool.for_each_block(static_cast<int64_t>(blocks), [&](int64_t block) {
    const size_t begin = static_cast<size_t>(block) * kTouchBlockBytes;
    const size_t end = std::min(begin + kTouchBlockBytes, memory.size());
    for (size_t i = begin; i < end; i += kSmallPageBytes) {
      // The volatile store forces the page in; the value is already zero.
      *static_cast<volatile std::byte*>(&memory[i]) = std::byte{0};
    }
    progress.add(static_cast<Bytes>(end - begin));
  });
}

// This is more than Linux supports.
constexpr int kMostIds = 1 << 16;

// Removes a number from the front of the text and returns it; returns -1 if there is none.
int take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number >= kMostIds) return -1;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

}  // namespace

PinnedArena::PinnedArena(Bytes bytes, bool register_with_gpus, WorkerPool& pool, bool shared)
    : mapping_(shared ? HostMapping::shared(bytes, "host tier") : HostMapping(bytes, "host tier")) {
  touch(mapping_.bytes(), pool);
  huge_page_bytes_ = longshore::huge_page_bytes(mapping_.bytes());
  if (bytes >= kLargeArenaBytes) {
    log_info("host memory of " + format_bytes(bytes) + ": " + format_bytes(huge_page_bytes_) +
             " in huge pages");
  }
  if (register_with_gpus) registration_ = HostRegistration(mapping_.bytes());
  if (registration_.refusal().empty()) return;
  log_warning("the GPU refused to register " + format_bytes(bytes) + " of host memory (" +
              registration_.refusal() +
              "): copies go through small buffers, at the speed of one thread; "
              "offload.pinned_memory lets the plan count with that (docs/confined.md)");
}

std::optional<Bytes> find_pin_limit(Bytes available) {
  const Bytes most = std::min(kPinTrialBytes, available / 4);
  for (Bytes bytes = most; bytes >= kMiB; bytes /= 2) {
    const HostMapping mapping(bytes, "a trial of host memory");
    const HostRegistration registration(mapping.bytes());
    if (!registration.refusal().empty()) continue;
    if (bytes == most) return std::nullopt;
    return bytes;
  }
  return 0;
}

std::vector<int> parse_id_list(std::string_view text) {
  while (text.ends_with('\n') || text.ends_with(' ')) text.remove_suffix(1);
  std::vector<int> ids;
  while (!text.empty()) {
    const int first = take_number(text);
    int last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      last = take_number(text);
    }
    if (first < 0 || last < first) return {};
    for (int id = first; id <= last; ++id) ids.push_back(id);
    if (text.empty()) break;
    if (!text.starts_with(',') || text.size() == 1) return {};
    text.remove_prefix(1);
  }
  return ids;
}

std::vector<int> read_numa_nodes(const std::filesystem::path& root) {
  const std::vector<int> nodes =
      parse_id_list(first_line(root / "sys/devices/system/node/has_memory").value_or(""));
  return nodes.empty() ? std::vector<int>{0} : nodes;
}

}  // namespace longshore
