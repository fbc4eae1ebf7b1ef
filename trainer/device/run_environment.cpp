#include "trainer/device/run_environment.h"

#include <elf.h>
#include <link.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <fstream>
#include <optional>

#include "base/file.h"
#include "comm/collectives/nccl_communicator.h"

namespace longshore {
namespace {

// Returns X from "model name : X" in /proc/cpuinfo or "MemTotal: X kB" in /proc/meminfo.
std::optional<std::string> proc_value(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return std::nullopt;
}

void add(Json& object, const char* key, const std::optional<std::string>& value) {
  if (value && !value->empty()) object[key] = *value;
}

int64_t allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return ::sysconf(_SC_NPROCESSORS_ONLN);
  return CPU_COUNT(&set);
}

// Returns "unlimited" or a number of bytes.
Json limit(int resource) {
  struct rlimit value{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &value) != 0) return nullptr;
  if (value.rlim_cur == RLIM_INFINITY) return "unlimited";
  return value.rlim_cur;
}

// Reads the linker's build id note of the main program, which is the first object visited.
int find_build_id(dl_phdr_info* info, size_t, void* result) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_NOTE) continue;
    const char* at = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
    const char* const end = at + header.p_memsz;
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      ElfW(Nhdr) note;
      std::memcpy(&note, at, sizeof note);
      const char* const name = at + sizeof note;
      const char* const text = name + align_up(note.n_namesz, 4);
      if (note.n_type == NT_GNU_BUILD_ID && std::strncmp(name, "GNU", 4) == 0) {
        static_cast<std::string*>(result)->assign(text, note.n_descsz);
        return 1;
      }
      at = text + align_up(note.n_descsz, 4);
    }
  }
  return 1;
}

}  // namespace

std::string build_id() {
  std::string bytes;
  ::dl_iterate_phdr(find_build_id, &bytes);
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm day{};
  ::gmtime_r(&now, &day);
  char text[16];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d", &day)};
}

Bytes resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size_pages = 0;
  int64_t resident_pages = 0;
  if (!(file >> size_pages >> resident_pages)) return 0;
  return resident_pages * ::sysconf(_SC_PAGESIZE);
}

Json run_environment() {
  Json object = Json::object();
  object["libtorch"] = TORCH_VERSION;
  object["compiler"] = __VERSION__;
  object["build_id"] = build_id();
  if (const std::string nccl = nccl_version(); !nccl.empty()) {
    object["nccl"] = {{"version", nccl}};
    for (const NcclSetting& setting : kNcclSettings) object["nccl"][setting.name] = setting.value;
  }
  struct utsname system{};
  if (::uname(&system) == 0) {
    object["host"] = system.nodename;
    object["system"] = std::string(system.sysname) + " " + system.release + " " + system.machine;
  }
  add(object, "processor", proc_value("/proc/cpuinfo", "model name"));
  object["cores_online"] = ::sysconf(_SC_NPROCESSORS_ONLN);
  object["cores_allowed"] = allowed_cores();
  add(object, "memory_total", proc_value("/proc/meminfo", "MemTotal"));
  add(object, "memory_available", proc_value("/proc/meminfo", "MemAvailable"));
  add(object, "cgroup_memory_max", first_line("/sys/fs/cgroup/memory.max"));
  add(object, "cgroup_cpu_max", first_line("/sys/fs/cgroup/cpu.max"));
  add(object, "transparent_hugepage", first_line("/sys/kernel/mm/transparent_hugepage/enabled"));
  object["limits"] = {{"memlock_bytes", limit(RLIMIT_MEMLOCK)},
                      {"open_files", limit(RLIMIT_NOFILE)},
                      {"address_space_bytes", limit(RLIMIT_AS)}};
  return object;
}

}  // namespace longshore
