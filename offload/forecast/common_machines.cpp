#include "offload/forecast/common_machines.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "base/errors.h"
#include "base/texts.h"
#include "shard/state_format.h"

namespace longshore {
namespace {

// ---- Data sheets ----

// A processor by its product page, on a board for workstations or servers.
struct HostSheet {
  const char* cpu;
  int cores;  // each with two threads
  SimdLevel simd;
  double memory_gbs;  // peak of all channels
  int lanes;          // of PCIe, for all GPUs together
  double watts;       // of everything but the GPUs
};

// AMD: 2 channels DDR4-3200; of its 24 lanes 16 are for GPUs.
constexpr HostSheet kDesktopDdr4 = {"AMD Ryzen 9 5950X", 16, SimdLevel::kAvx2, 51.2, 16, 150.0};
// AMD: 2 channels DDR5-5200; 16 lanes for GPUs.
constexpr HostSheet kDesktopDdr5 = {"AMD Ryzen 9 7950X", 16, SimdLevel::kAvx512, 83.2, 16, 150.0};
// AMD: 2 channels DDR5-5600.
constexpr HostSheet kLaptop = {"AMD Ryzen 7 7840HS", 8, SimdLevel::kAvx512, 89.6, 8, 60.0};
// AMD: 8 channels DDR4-3200.
constexpr HostSheet kEpyc7763 = {"AMD EPYC 7763", 64, SimdLevel::kAvx2, 204.8, 128, 300.0};
// AMD: 12 channels DDR5-4800.
constexpr HostSheet kEpyc9554 = {"AMD EPYC 9554", 64, SimdLevel::kAvx512, 460.8, 128, 400.0};
// Intel: 8 channels DDR5-4800.
constexpr HostSheet kXeon = {"Intel Xeon Platinum 8480+", 56, SimdLevel::kAvx512, 307.2, 80, 400.0};
// A board for eight GPUs, whose switches give each of them 16 lanes.
constexpr HostSheet kXeonBoard = {
    "Intel Xeon Platinum 8480+", 56, SimdLevel::kAvx512, 307.2, 128, 1500.0};

// A host and its installed memory.
struct Place {
  const HostSheet* host;
  int64_t gib;
};
constexpr Place kOldDesktop = {&kDesktopDdr4, 64}, kDesktop = {&kDesktopDdr5, 64};
constexpr Place kServer = {&kEpyc9554, 512};

// PCIe, GB/s in one direction.
constexpr double kPcie4x8 = 15.75, kPcie4x16 = 31.5, kPcie5x16 = 63.0;

// A GPU by its data sheet. Products are dense, with sums in fp32.
struct GpuSheet {
  const char* name;     // "rtx-4090"
  const char* spelled;  // as the driver spells it
  const char* also;     // other spellings, as compact() writes them, between spaces
  int64_t gib;
  double bf16, fp32;  // TFLOP/s
  double memory_gbs;
  double pcie_gbs;
  int lanes;
  double watts;
  Place one;                // the host of one GPU
  Place several;            // the host of "2x" and more
  double nvlink_gbs = 0.0;  // in one direction; 0: GPUs exchange through the host
};

// Sources: NVIDIA's whitepapers of Ampere GA102, Ada and RTX Blackwell, the product pages of
// GeForce GPUs (bf16 is twice fp32 there, as in the whitepapers), the data sheets of A100, RTX
// A6000, L40S, H100 and H200 (dense is half of the figures with sparsity). The RTX 4060 of laptops
// is counted at its highest clock and 115 W.
constexpr std::array kGpus = {
    GpuSheet{"rtx-3060", "NVIDIA GeForce RTX 3060", "3060", 12, 25.4, 12.7, 360, kPcie4x16, 16, 170,
             kOldDesktop, kServer},
    GpuSheet{"rtx-3070", "NVIDIA GeForce RTX 3070", "3070", 8, 40.6, 20.3, 448, kPcie4x16, 16, 220,
             kOldDesktop, kServer},
    GpuSheet{"rtx-3080", "NVIDIA GeForce RTX 3080", "3080", 10, 59.5, 29.8, 760, kPcie4x16, 16, 320,
             kOldDesktop, kServer},
    GpuSheet{"rtx-3090", "NVIDIA GeForce RTX 3090", "3090", 24, 71.0, 35.6, 936, kPcie4x16, 16, 350,
             kOldDesktop, kServer},
    GpuSheet{"rtx-4060-laptop",
             "NVIDIA GeForce RTX 4060 Laptop GPU",
             "4060laptop rtx4060mobile 4060mobile",
             8,
             29.2,
             14.6,
             256,
             kPcie4x8,
             8,
             115,
             {&kLaptop, 32},
             kServer},
    GpuSheet{"rtx-4060", "NVIDIA GeForce RTX 4060", "4060", 8, 30.2, 15.1, 272, kPcie4x8, 8, 115,
             kDesktop, kServer},
    GpuSheet{"rtx-4060-ti-8gb", "NVIDIA GeForce RTX 4060 Ti", "rtx4060ti 4060ti", 8, 44.1, 22.06,
             288, kPcie4x8, 8, 160, kDesktop, kServer},
    GpuSheet{"rtx-4060-ti-16gb", "NVIDIA GeForce RTX 4060 Ti", "rtx4060ti 4060ti", 16, 44.1, 22.06,
             288, kPcie4x8, 8, 165, kDesktop, kServer},
    GpuSheet{"rtx-4070", "NVIDIA GeForce RTX 4070", "4070", 12, 58.2, 29.1, 504, kPcie4x16, 16, 200,
             kDesktop, kServer},
    GpuSheet{"rtx-4070-ti", "NVIDIA GeForce RTX 4070 Ti", "4070ti", 12, 80.2, 40.1, 504, kPcie4x16,
             16, 285, kDesktop, kServer},
    GpuSheet{"rtx-4070-ti-super", "NVIDIA GeForce RTX 4070 Ti SUPER", "4070tisuper", 16, 88.2, 44.1,
             672, kPcie4x16, 16, 285, kDesktop, kServer},
    GpuSheet{"rtx-4080", "NVIDIA GeForce RTX 4080", "4080", 16, 97.5, 48.7, 717, kPcie4x16, 16, 320,
             kDesktop, kServer},
    GpuSheet{"rtx-4090", "NVIDIA GeForce RTX 4090", "4090", 24, 165.2, 82.6, 1008, kPcie4x16, 16,
             450, kDesktop, kServer},
    GpuSheet{"rtx-5070-ti", "NVIDIA GeForce RTX 5070 Ti", "5070ti", 16, 87.9, 43.9, 896, kPcie5x16,
             16, 300, kDesktop, kServer},
    GpuSheet{"rtx-5080", "NVIDIA GeForce RTX 5080", "5080", 16, 112.6, 56.3, 960, kPcie5x16, 16,
             360, kDesktop, kServer},
    GpuSheet{"rtx-5090", "NVIDIA GeForce RTX 5090", "5090", 32, 209.5, 104.8, 1792, kPcie5x16, 16,
             575, kDesktop, kServer},
    GpuSheet{"rtx-a6000",
             "NVIDIA RTX A6000",
             "a6000",
             48,
             154.8,
             38.7,
             768,
             kPcie4x16,
             16,
             300,
             {&kEpyc7763, 256},
             {&kEpyc7763, 512}},
    GpuSheet{"l40s",
             "NVIDIA L40S",
             "",
             48,
             362.05,
             91.6,
             864,
             kPcie4x16,
             16,
             350,
             {&kEpyc9554, 256},
             kServer},
    GpuSheet{"a100-40gb",
             "NVIDIA A100-PCIE-40GB",
             "a100 a100pcie",
             40,
             312.0,
             19.5,
             1555,
             kPcie4x16,
             16,
             250,
             {&kEpyc7763, 256},
             {&kEpyc7763, 1024}},
    GpuSheet{"a100-80gb",
             "NVIDIA A100 80GB PCIe",
             "a100 a100pcie",
             80,
             312.0,
             19.5,
             1935,
             kPcie4x16,
             16,
             300,
             {&kEpyc7763, 256},
             {&kEpyc7763, 1024}},
    GpuSheet{"h100-sxm",
             "NVIDIA H100 SXM",
             "h100 h100hbm3 h100sxm5",
             80,
             989.4,
             67.0,
             3350,
             kPcie5x16,
             16,
             700,
             {&kXeon, 512},
             {&kXeonBoard, 2048},
             450.0},
    GpuSheet{"h200-sxm",
             "NVIDIA H200 SXM",
             "h200 h200sxm5",
             140,
             989.4,
             67.0,
             4800,
             kPcie5x16,
             16,
             700,
             {&kXeon, 512},
             {&kXeonBoard, 2048},
             450.0},
};

// Machines that have other names than their GPU.
struct NamedMachine {
  const char* name;
  const char* gpu;  // "": none
  Place place;
};
constexpr std::array kNamed = {
    NamedMachine{"rtx-4090-128gb", "rtx-4090", {&kDesktopDdr5, 128}},
    NamedMachine{"cpu-desktop-ddr5", "", {&kDesktopDdr5, 128}},
};
// Numbers of GPUs that messages name; every other number is known too.
constexpr const char* kSeveral[] = {"2x-rtx-3090", "4x-rtx-3090", "2x-rtx-4090", "4x-rtx-4090",
                                    "8x-h100-sxm"};
constexpr int32_t kMostGpus = 64;

// Samsung, SSD 990 PRO 2 TB: GB/s.
constexpr double kDriveRead = 7.45, kDriveWritten = 6.9;

// ---- Estimates from data sheets ----

constexpr char kSource[] = "estimated from data sheets";
// Shares of the peak of the host's memory: the update, and a pass that only moves bytes.
constexpr double kUpdateShare = 0.5, kMoveShare = 0.7;
// A copy by one thread: GB/s, and at most this share of that peak. Memory is made ready by one too.
constexpr double kCopyGbs = 8.0, kCopyShare = 0.3, kPinGbs = 3.0;
// Shares of PCIe: one way, both ways busy, and collectives through the host, without peer copies.
constexpr double kLinkShare = 0.8, kBothLinksShare = 0.7, kHostCollectives = 0.4;
// Share of NVLink in one direction.
constexpr double kNvlinkCollectives = 0.6;
// Shares of the peak of a GPU: products at width 1024 and from 4096 on, and attention.
constexpr double kNarrowProducts = 0.35, kWideProducts = 0.55, kAttention = 0.3;
// Products with adapters, of the peak of the GPU's memory, as measured on an H200.
constexpr double kAdapters = 0.48;
// A CPU reaches this share of its peak at 3 GHz; bf16 has half of that, attention a quarter.
constexpr double kCpuShare = 0.5, kCpuGhz = 3.0, kCpuBf16 = 0.5, kCpuAttention = 0.25;
// Shares of a drive's data sheet: one way, and both ways busy. Past their cache writes are slower.
constexpr double kDriveShare = 0.9, kBothDriveShare = 0.6;

// Estimates have four digits.
double four_digits(double value) {
  return std::strtod(formatted("%.4g", value).c_str(), nullptr);
}

double giga(double value) {
  return four_digits(value) * kGiga;
}

double tera(double value) {
  return four_digits(value) * kTera;
}

DriveRates drive_of(double read, double written) {
  return {.directory = "*",
          .read = giga(read * kDriveShare),
          .written = giga(written * kDriveShare),
          .read_both = giga(read * kBothDriveShare),
          .written_both = giga(written * kBothDriveShare)};
}

// The system and other programs take 4 GiB and 1/64 of the memory.
Bytes free_of(Bytes memory) {
  const Bytes rest = memory - 4 * kGiB - memory / 64;
  return rest >= kGiB ? rest / kGiB * kGiB : std::max<Bytes>(rest, 0);
}

void set_memory(Machine& machine, Bytes memory) {
  machine.ram_total = memory;
  machine.ram_available = free_of(memory);
}

void add_cpu(const HostSheet& host, MachineRates& rates) {
  const double operations = host.simd == SimdLevel::kAvx512 ? 32.0 : 16.0;  // a cycle and core
  const double peak = kCpuShare * operations * kCpuGhz * host.cores / 1e3;
  for (const auto& [dtype, share] : {std::pair(DType::kF32, 1.0), {DType::kBF16, kCpuBf16}}) {
    rates.compute.push_back({.device = DeviceKind::kCpu,
                             .dtype = dtype,
                             .products = {{1024.0, tera(peak * share)}},
                             .attention = tera(peak * share * kCpuAttention)});
  }
}

// Adds the rates of `count` GPUs that share the host's lanes.
void add_gpus(const GpuSheet& gpu, const HostSheet& host, int32_t count, MachineRates& rates) {
  const double lanes = std::min(gpu.lanes, host.lanes / count);
  const double pcie = gpu.pcie_gbs * lanes / gpu.lanes;
  rates.link = {giga(kLinkShare * pcie), giga(kLinkShare * pcie), giga(kBothLinksShare * pcie),
                giga(kBothLinksShare * pcie)};
  const double collective =
      gpu.nvlink_gbs > 0.0 ? gpu.nvlink_gbs * kNvlinkCollectives : pcie * kHostCollectives;
  for (int32_t ranks = 2; ranks <= count;
       ranks = ranks < count ? std::min(2 * ranks, count) : count + 1) {
    const CollectiveRate whole = {.bytes = giga(collective)};
    const CollectiveRate half = {.bytes = giga(collective / 2.0)};
    rates.groups.push_back({DeviceKind::kCuda, ranks, whole, whole, half});
  }
  for (const auto& [dtype, peak] : {std::pair(DType::kBF16, gpu.bf16), {DType::kF32, gpu.fp32}}) {
    rates.compute.push_back(
        {.device = DeviceKind::kCuda,
         .dtype = dtype,
         .products = {{1024.0, tera(kNarrowProducts * peak)}, {4096.0, tera(kWideProducts * peak)}},
         .attention = tera(kAttention * peak),
         .adapters = std::round(kAdapters * gpu.memory_gbs) * kGiga});
  }
}

std::vector<CudaDevice> gpus_of(const GpuSheet& gpu, int32_t count) {
  std::vector<CudaDevice> gpus(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    CudaDevice& one = gpus[static_cast<size_t>(i)];
    one.name = gpu.spelled;
    one.memory_bytes = gpu.gib * kGiB;
    for (int32_t other = 0; gpu.nvlink_gbs > 0.0 && other < count; ++other) {
      if (other != i) one.peers.push_back(other);
    }
  }
  return gpus;
}

// Returns a machine; `gpu` is null if it has none.
DescribedMachine estimated(const GpuSheet* gpu, int32_t count, const Place& place) {
  const HostSheet& host = *place.host;
  DescribedMachine described;
  described.machine.cpu_model = host.cpu;
  described.machine.simd = host.simd;
  described.machine.physical_cores = host.cores;
  described.machine.logical_cores = 2 * host.cores;
  set_memory(described.machine, place.gib * kGiB);
  MachineRates& rates = described.rates;
  rates.source = kSource;
  rates.dram = giga(kMoveShare * host.memory_gbs);
  rates.copy = giga(std::min(kCopyGbs, kCopyShare * host.memory_gbs));
  rates.pin = giga(kPinGbs);
  for (const StateFormatTraits& traits : kStateFormats) {
    rates.updates.push_back(
        {.format = traits.format, .bytes = giga(kUpdateShare * host.memory_gbs)});
  }
  rates.drives = {drive_of(kDriveRead, kDriveWritten)};
  rates.files_read = rates.drives.front().read;
  rates.files_written = rates.drives.front().written;
  add_cpu(host, rates);
  described.watts = host.watts;
  if (gpu == nullptr) return described;
  described.machine.gpus = gpus_of(*gpu, count);
  add_gpus(*gpu, host, count, rates);
  described.watts += gpu->watts * count;
  return described;
}

std::string title_of(const Machine& machine) {
  const size_t count = machine.gpus.size();
  std::string title = count > 1 ? std::to_string(count) + " x " : "";
  if (count > 0) title += machine.gpus.front().name + ", ";
  return title + machine.cpu_model + ", " + std::to_string(machine.ram_total / kGiB) + " GiB";
}

// ---- Names ----

// A written name in its parts: "2x-rtx-3090", "NVIDIA A100 80GB PCIe".
struct Spelling {
  int32_t count = 0;    // 0: not said
  int64_t gib = 0;      // of the GPU; 0: not said
  std::string compact;  // without the maker, separators, count and memory: "rtx3090", "a100pcie"
};

// Returns the lower-case words of the name; a number and its unit are one word.
std::vector<std::string> words_of(std::string_view written) {
  std::vector<std::string> words = {""};
  for (const char letter : written) {
    const auto byte = static_cast<unsigned char>(letter);
    if (std::isalnum(byte) != 0) {
      words.back() += static_cast<char>(std::tolower(byte));
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

// Returns the number before the unit, "80" of "80gb"; 0 if the word is no such number.
int64_t number_before(const std::string& word, std::string_view unit) {
  const size_t digits = word.find_first_not_of("0123456789");
  if (digits == 0 || digits > 4 || digits == std::string::npos) return 0;
  return word.substr(digits) == unit ? std::strtoll(word.c_str(), nullptr, 10) : 0;
}

// Removes the number of GPUs from the front of "2x" or "2x4090"; 0 if it has none.
int32_t take_count(std::string& word) {
  const size_t digits = word.find_first_not_of("0123456789");
  if (digits == 0 || digits > 2 || digits >= word.size() || word[digits] != 'x') return 0;
  const int32_t count = std::atoi(word.c_str());
  word.erase(0, digits + 1);
  return count;
}

Spelling spelling_of(std::string_view written) {
  Spelling spelling;
  std::vector<std::string> words = words_of(written);
  if (words.size() > 1 && words[1] == "x") {  // "2 x RTX 4090"
    words[0] += "x";
    words.erase(words.begin() + 1);
  }
  if (!words.empty()) spelling.count = take_count(words.front());
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "nvidia" || word == "geforce" || word == "gpu") continue;
    int64_t gib = std::max(number_before(word, "gb"), number_before(word, "gib"));
    const bool apart = i + 1 < words.size() && (words[i + 1] == "gb" || words[i + 1] == "gib");
    if (apart && word.find_first_not_of("0123456789") == std::string::npos && word.size() < 4) {
      gib = std::strtoll(word.c_str(), nullptr, 10);
      ++i;
    }
    if (gib > 0) {
      spelling.gib = gib;
    } else {
      spelling.compact += word;
    }
  }
  return spelling;
}

bool is_named(const GpuSheet& gpu, const Spelling& spelling) {
  // Names have the GB of the data sheet, which may be one more than the GiB.
  const bool other_memory = spelling.gib > 0 && std::abs(spelling.gib - gpu.gib) > 1;
  if (spelling.compact.empty() || other_memory) return false;
  if (spelling.compact == spelling_of(gpu.name).compact) return true;
  const std::vector<std::string> also = words_of(gpu.also);
  return std::ranges::find(also, spelling.compact) != also.end();
}

// Returns null if no GPU has the name.
const GpuSheet* gpu_of(std::string_view written, const Spelling& spelling) {
  std::vector<const GpuSheet*> found;
  for (const GpuSheet& gpu : kGpus) {
    if (is_named(gpu, spelling)) found.push_back(&gpu);
  }
  if (found.size() < 2) return found.empty() ? nullptr : found.front();
  throw ConfigError("--machine " + std::string(written) + ": name one of " +
                    joined(found, ", ", [](const GpuSheet* gpu) { return gpu->name; }));
}

}  // namespace

void change_machine(DescribedMachine& described, const MachineChanges& changes) {
  Machine& machine = described.machine;
  if (changes.gpus > 0 && machine.gpus.empty()) {
    throw ConfigError("--gpus: the machine " + described.name +
                      " has no GPU; name a machine with the GPU of which it has " +
                      std::to_string(changes.gpus));
  }
  if (changes.gpus > 0) {
    machine.gpus.resize(static_cast<size_t>(changes.gpus), machine.gpus.front());
  }
  if (changes.memory > 0) set_memory(machine, changes.memory);
  if (changes.drive_read > 0.0) {
    const double written = changes.drive_written > 0.0
                               ? changes.drive_written
                               : changes.drive_read * kDriveWritten / kDriveRead;
    described.rates.drives = {drive_of(changes.drive_read / kGiga, written / kGiga)};
  }
  if (changes.any()) described.name = title_of(machine);
}

std::optional<DescribedMachine> common_machine(std::string_view written,
                                               const MachineChanges& changes) {
  const auto named = std::ranges::find(kNamed, written, &NamedMachine::name);
  const bool has_name = named != kNamed.end();
  const Spelling spelling = spelling_of(has_name ? named->gpu : written);
  const GpuSheet* gpu = gpu_of(written, spelling);
  if (gpu == nullptr && !has_name) return std::nullopt;
  const int32_t described = std::max(1, spelling.count);
  const int32_t count = changes.gpus > 0 ? changes.gpus : described;
  // "2x" means a board with several GPUs, which GPUs with NVLink need too.
  const bool board = described > 1 || (count > 1 && gpu != nullptr && gpu->nvlink_gbs > 0.0);
  const Place place = has_name ? named->place : board ? gpu->several : gpu->one;
  if (count > kMostGpus || (gpu != nullptr && count > place.host->lanes)) {
    throw ConfigError("--machine " + std::string(written) + ": " + std::to_string(count) +
                      " GPUs are more than one machine has; --ranks plans for several machines");
  }
  DescribedMachine machine = estimated(gpu, gpu == nullptr ? 0 : count, place);
  machine.name = title_of(machine.machine);
  change_machine(machine, changes);
  return machine;
}

std::vector<std::string> common_machine_names() {
  std::vector<std::string> names;
  for (const GpuSheet& gpu : kGpus) names.emplace_back(gpu.name);
  for (const NamedMachine& named : kNamed) names.emplace_back(named.name);
  for (const char* several : kSeveral) names.emplace_back(several);
  return names;
}

std::string nearest_machine(std::string_view written) {
  const Spelling spelling = spelling_of(written);
  std::vector<std::string> spellings, names;
  for (const GpuSheet& gpu : kGpus) {
    spellings.push_back(spelling_of(gpu.name).compact);
    names.emplace_back(gpu.name);
    for (const std::string& also : words_of(gpu.also)) {
      spellings.push_back(also);
      names.emplace_back(gpu.name);
    }
  }
  const std::string nearest = nearest_name(spelling.compact, spellings);
  if (nearest.empty()) return "";
  const auto at = std::ranges::find(spellings, nearest) - spellings.begin();
  return (spelling.count > 1 ? std::to_string(spelling.count) + "x-" : "") +
         names[static_cast<size_t>(at)];
}

void parse_drive_rates(const std::string& text, MachineChanges& changes) {
  const auto rate_of = [&text](const std::string& part) {
    char* end = nullptr;
    const double number = std::strtod(part.c_str(), &end);
    const std::string unit(trimmed(end));
    const double scale = unit == "GB/s" ? kGiga : unit == "MB/s" ? 1e6 : 0.0;
    if (end == part.c_str() || !(number > 0.0) || scale == 0.0 || number * scale > 1e3 * kGiga) {
      throw ConfigError("--nvme " + text +
                        ": expected the rate of the drive's data sheet, for example 7GB/s, or "
                        "7GB/s,6GB/s as read and written");
    }
    return number * scale;
  };
  const size_t comma = text.find(',');
  changes.drive_read = rate_of(text.substr(0, comma));
  if (comma != std::string::npos) changes.drive_written = rate_of(text.substr(comma + 1));
}

}  // namespace longshore
