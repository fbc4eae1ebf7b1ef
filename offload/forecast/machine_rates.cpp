#include "offload/forecast/machine_rates.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/errors.h"
#include "base/texts.h"
#include "config/toml_document.h"
#include "shard/state_format.h"

namespace longshore {
namespace {

// In machine descriptions this drive name matches any directory.
constexpr char kAnyDirectory[] = "*";

}  // namespace

double MachineRates::update_bytes(StateFormat format, int threads, int32_t ranks) const {
  const auto found = std::ranges::find(updates, format, &UpdateRate::format);
  if (found == updates.end()) return 0.0;
  const double share = found->bytes / ranks;
  return found->one_thread > 0.0 ? std::min(share, found->one_thread * threads) : share;
}

const GroupRates* MachineRates::group(DeviceKind device, int32_t ranks) const {
  const auto found = std::ranges::find_if(groups, [&](const GroupRates& group) {
    return group.device == device && group.ranks == ranks;
  });
  return found == groups.end() ? nullptr : &*found;
}

const ComputeRates* MachineRates::of(DeviceKind device, DType dtype) const {
  const auto found = std::ranges::find_if(compute, [&](const ComputeRates& rates) {
    return rates.device == device && rates.dtype == dtype;
  });
  return found == compute.end() ? nullptr : &*found;
}

const DriveRates* MachineRates::drive(const std::string& directory) const {
  for (const std::string& name : {directory, std::string(kAnyDirectory)}) {
    const auto found = std::ranges::find(drives, name, &DriveRates::directory);
    if (found != drives.end()) return &*found;
  }
  return nullptr;
}

double product_flops(const ComputeRates& rates, double width) {
  const std::vector<ProductRate>& products = rates.products;
  if (products.empty()) return 0.0;
  const auto above = std::ranges::lower_bound(products, width, {}, &ProductRate::width);
  if (above == products.begin()) return products.front().flops;
  if (above == products.end()) return products.back().flops;
  const ProductRate& below = *(above - 1);
  const double share = std::log(width / below.width) / std::log(above->width / below.width);
  return below.flops + share * (above->flops - below.flops);
}

namespace {

// Incremented by every change that older programs would misread.
constexpr int64_t kVersion = 1;

// ---- Reading ----

// Reads the keys of a table one by one; keys that were not read are reported as unknown.
class TableReader {
 public:
  TableReader(const std::vector<TomlMember>& members, std::string name,
              std::vector<std::string>* problems)
      : members_(members), name_(std::move(name)), problems_(problems) {}

  const TomlValue* find(const std::string& key, TomlValue::Kind kind, const char* expected) {
    known_.push_back(key);
    for (const TomlMember& member : members_) {
      if (member.name != key) continue;
      if (member.value.kind == kind) return &member.value;
      problem(member.place, key + ": expected " + expected + ", found " + describe(member.value));
    }
    return nullptr;
  }
  // Reads a number above 0, integer or not.
  double number(const std::string& key, double most = kMostRate) {
    known_.push_back(key);
    for (const TomlMember& member : members_) {
      if (member.name != key) continue;
      double value = -1.0;
      if (member.value.kind == TomlValue::Kind::kReal) value = member.value.real;
      if (member.value.kind == TomlValue::Kind::kInteger) {
        value = static_cast<double>(member.value.integer);
      }
      if (value > 0.0 && value <= most) return value;
      problem(member.place, key + ": expected a number above 0 and at most " +
                                std::to_string(static_cast<int64_t>(most)) + ", found " +
                                describe(member.value));
    }
    return 0.0;
  }
  int integer(const std::string& key, int least, int otherwise) {
    const TomlValue* value = find(key, TomlValue::Kind::kInteger, "a whole number");
    if (value == nullptr) return otherwise;
    if (value->integer >= least && value->integer <= (1 << 20)) {
      return static_cast<int>(value->integer);
    }
    problem(value->place, key + ": from " + std::to_string(least) + " to 1048576");
    return otherwise;
  }
  std::string text(const std::string& key) {
    const TomlValue* value = find(key, TomlValue::Kind::kString, "a text");
    return value == nullptr ? "" : value->string;
  }
  Bytes bytes(const std::string& key) {
    const TomlValue* value = find(key, TomlValue::Kind::kString, "a size, for example \"64GiB\"");
    if (value == nullptr) return 0;
    const std::optional<Bytes> size = parse_bytes(value->string);
    if (size && *size > 0) return *size;
    problem(value->place, key + ": not a size above 0, for example \"64GiB\"");
    return 0;
  }
  std::vector<std::string> texts(const std::string& key) {
    std::vector<std::string> texts;
    const TomlValue* value = find(key, TomlValue::Kind::kArray, "an array of texts");
    if (value == nullptr) return texts;
    for (const TomlValue& element : value->elements) {
      if (element.kind == TomlValue::Kind::kString) texts.push_back(element.string);
      if (element.kind != TomlValue::Kind::kString) {
        problem(element.place, key + ": expected a text, found " + describe(element));
      }
    }
    return texts;
  }
  // Reads the tables of [[key]], or of [key].
  void each(const std::string& key, const std::function<void(TableReader&)>& read) {
    known_.push_back(key);
    for (const TomlMember& member : members_) {
      if (member.name != key) continue;
      std::vector<TomlValue> tables = {member.value};
      if (member.value.kind == TomlValue::Kind::kArray) tables = member.value.elements;
      for (const TomlValue& table : tables) {
        if (table.kind != TomlValue::Kind::kTable) {
          problem(table.place, key + ": expected a table, found " + describe(table));
          continue;
        }
        TableReader reader(table.members, key, problems_);
        reader.place_ = member.place;
        read(reader);
        reader.end();
      }
    }
  }
  void problem(const SourceLocation& place, const std::string& text) {
    problems_->push_back(place.text() + ": " + (name_.empty() ? "" : name_ + ".") + text);
  }
  void problem(const std::string& text) { problem(place_, text); }
  void end() {
    for (const TomlMember& member : members_) {
      if (std::ranges::find(known_, member.name) != known_.end()) continue;
      const std::string nearest = nearest_name(member.name, known_);
      problem(member.place, member.name + ": no such key" +
                                (nearest.empty() ? "" : "; did you mean " + nearest + "?"));
    }
  }

 private:
  const std::vector<TomlMember>& members_;
  std::string name_;
  std::vector<std::string>* problems_;
  std::vector<std::string> known_;
  SourceLocation place_;
};

void read_host(TableReader& host, Machine& machine) {
  machine.cpu_model = host.text("cpu");
  machine.physical_cores = host.integer("cores", 1, 1);
  machine.logical_cores = host.integer("threads", 1, machine.physical_cores);
  machine.ram_total = host.bytes("memory");
  const Bytes free = host.bytes("free");
  machine.ram_available = free > 0 ? free : machine.ram_total;
  if (free > machine.ram_total) host.problem("free is more than memory");
  const std::string simd = host.text("simd");
  for (const SimdLevel level : kSimdLevels) {
    if (name_of(level) == simd) machine.simd = level;
  }
  if (!simd.empty() && name_of(machine.simd) != simd) host.problem("simd: no such level: " + simd);
  if (machine.ram_total == 0) host.problem("memory is missing, for example memory = \"64GiB\"");
}

void read_gpu(TableReader& table, Machine& machine) {
  CudaDevice gpu;
  gpu.name = table.text("name");
  gpu.memory_bytes = table.bytes("memory");
  const int count = table.integer("count", 1, 1);
  const bool peers = table.integer("peers", 0, 0) != 0;
  if (gpu.memory_bytes == 0) table.problem("memory is missing, for example memory = \"24GiB\"");
  for (int i = 0; i < count; ++i) {
    machine.gpus.push_back(gpu);
    if (!peers) continue;
    for (int other = 0; other < count; ++other) {
      if (other != i) machine.gpus.back().peers.push_back(other);
    }
  }
}

// Reads the numbers of a table's fields; a missing one stays 0.
template <typename Rates, typename Fields>
void read_fields(TableReader& table, const Fields& fields, Rates& rates) {
  for (const RateField<Rates>& field : fields) {
    rates.*field.member = table.number(field.key, field.most) * field.unit;
  }
}

UpdateRate read_update(TableReader& table) {
  const std::string name = table.text("format");
  const std::optional<StateFormat> format = parse_state_format(name);
  if (!format) table.problem("format: no such state format: \"" + name + "\"");
  UpdateRate update{.format = format.value_or(StateFormat::kFp32)};
  read_fields(table, kUpdateFields, update);
  return update;
}

CollectiveRate read_collective(TableReader& group, const std::string& key) {
  CollectiveRate rate{group.number(key) * kGiga, group.number(key + "_start") * kMicro,
                      group.number(key + "_start_core") * kMicro};
  const double share = group.number(key + "_core", 1.0);
  if (share > 0.0) rate.core_share = share;
  return rate;
}

DeviceKind read_device(TableReader& table) {
  const std::string name = table.text("device");
  if (name != "cpu" && name != "cuda") table.problem("device: \"cpu\" or \"cuda\"");
  return name == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu;
}

void read_compute(TableReader& table, std::vector<ComputeRates>& compute) {
  ComputeRates rates;
  const std::string name = table.text("dtype");
  if (name != "fp32" && name != "bf16") table.problem("dtype: \"fp32\" or \"bf16\"");
  rates.dtype = name == "bf16" ? DType::kBF16 : DType::kF32;
  rates.device = read_device(table);
  read_fields(table, kComputeFields, rates);
  table.each("product", [&rates](TableReader& product) {
    read_fields(product, kProductFields, rates.products.emplace_back());
  });
  std::ranges::sort(rates.products, {}, &ProductRate::width);
  compute.push_back(std::move(rates));
}

void read_rates(TableReader& table, MachineRates& rates) {
  read_fields(table, kMachineFields, rates);
  table.each("link", [&](TableReader& link) { read_fields(link, kLinkFields, rates.link); });
  table.each("update", [&](TableReader& update) { rates.updates.push_back(read_update(update)); });
  table.each("drive", [&](TableReader& drive) {
    rates.drives.push_back({.directory = drive.text("directory")});
    read_fields(drive, kDriveFields, rates.drives.back());
  });
  table.each("group", [&](TableReader& group) {
    GroupRates found;
    found.device = read_device(group);
    found.ranks = group.integer("ranks", 2, 2);
    for (const CollectiveField& field : kCollectiveFields) {
      found.*field.member = read_collective(group, field.key);
    }
    rates.groups.push_back(found);
  });
  table.each("compute", [&](TableReader& compute) { read_compute(compute, rates.compute); });
}

// ---- Writing ----

std::string number_text(double value) {
  std::string written = formatted("%.6g", value);
  if (written.find_first_of(".e") == std::string::npos) written += ".0";
  return written;
}

// Writes a line unless the value is unknown.
void line(std::string& text, const std::string& key, double value, double unit) {
  if (value > 0.0) text += key + " = " + number_text(value / unit) + "\n";
}

void line(std::string& text, const std::string& key, const std::string& value) {
  if (!value.empty()) text += key + " = " + quote_toml(value) + "\n";
}

template <typename Rates, typename Fields>
void write_fields(std::string& text, const Fields& fields, const Rates& rates) {
  for (const RateField<Rates>& field : fields) {
    line(text, field.key, rates.*field.member, field.unit);
  }
}

std::string bytes_text(Bytes bytes) {
  for (const auto& [unit, name] : {std::pair(kGiB, "GiB"), {kMiB, "MiB"}, {kKiB, "KiB"}}) {
    if (bytes % unit == 0) return std::to_string(bytes / unit) + name;
  }
  return std::to_string(bytes);
}

std::string host_text(const Machine& machine) {
  std::string text = "\n[host]\n";
  line(text, "cpu", machine.cpu_model);
  text += "cores = " + std::to_string(machine.physical_cores) +
          "\nthreads = " + std::to_string(machine.logical_cores) + "\n";
  line(text, "simd", std::string(name_of(machine.simd)));
  line(text, "memory", bytes_text(machine.ram_total));
  if (machine.ram_available < machine.ram_total) {
    line(text, "free", bytes_text(machine.ram_available));
  }
  for (const CudaDevice& gpu : machine.gpus) {
    text += "\n[[gpu]]\n";
    line(text, "name", gpu.name);
    line(text, "memory", bytes_text(gpu.memory_bytes));
    if (!gpu.peers.empty()) text += "peers = 1\n";
  }
  return text;
}

std::string compute_text(const ComputeRates& rates) {
  std::string text = "\n[[rates.compute]]\n";
  line(text, "device", std::string(name_of(rates.device)));
  line(text, "dtype", rates.dtype == DType::kBF16 ? std::string("bf16") : std::string("fp32"));
  write_fields(text, kComputeFields, rates);
  for (const ProductRate& product : rates.products) {
    text += "[[rates.compute.product]]\n";
    write_fields(text, kProductFields, product);
  }
  return text;
}

void write_collective(std::string& text, const std::string& key, const CollectiveRate& rate) {
  line(text, key, rate.bytes, kGiga);
  line(text, key + "_start", rate.start_seconds, kMicro);
  line(text, key + "_start_core", rate.start_core_seconds, kMicro);
  if (rate.core_share < 1.0) line(text, key + "_core", rate.core_share, 1.0);
}

std::string rates_text(const MachineRates& rates) {
  std::string text = "\n[rates]\n";
  write_fields(text, kMachineFields, rates);
  if (!(rates.link == LinkRates{})) {
    text += "\n[rates.link]\n";
    write_fields(text, kLinkFields, rates.link);
  }
  for (const UpdateRate& update : rates.updates) {
    text += "\n[[rates.update]]\n";
    line(text, "format", std::string(name_of(update.format)));
    write_fields(text, kUpdateFields, update);
  }
  for (const DriveRates& drive : rates.drives) {
    text += "\n[[rates.drive]]\n";
    line(text, "directory", drive.directory);
    write_fields(text, kDriveFields, drive);
  }
  for (const GroupRates& group : rates.groups) {
    text += "\n[[rates.group]]\nranks = " + std::to_string(group.ranks) + "\n";
    line(text, "device", std::string(name_of(group.device)));
    for (const CollectiveField& field : kCollectiveFields) {
      write_collective(text, field.key, group.*field.member);
    }
  }
  for (const ComputeRates& compute : rates.compute) text += compute_text(compute);
  return text;
}

}  // namespace

std::string machine_to_toml(const DescribedMachine& machine) {
  std::string text =
      "# A machine, as longshore plan reads it with --machine. Rates: GB/s (1e9 bytes), "
      "TFLOP/s.\n"
      "version = " +
      std::to_string(kVersion) + "\n";
  line(text, "name", machine.name);
  line(text, "measured", machine.rates.source);
  line(text, "program", machine.program);
  if (!machine.sources.empty()) {
    text += "sources = [";
    for (size_t i = 0; i < machine.sources.size(); ++i) {
      text += (i > 0 ? ", " : "") + quote_toml(machine.sources[i]);
    }
    text += "]\n";
  }
  line(text, "watts", machine.watts, 1.0);
  return text + host_text(machine.machine) + rates_text(machine.rates);
}

DescribedMachine parse_machine(const std::string& text, const std::string& origin) {
  const std::vector<TomlMember> members = parse_toml(text, origin);
  std::vector<std::string> problems;
  DescribedMachine described;
  TableReader top(members, "", &problems);
  const TomlValue* version = top.find("version", TomlValue::Kind::kInteger, "a whole number");
  if (version == nullptr) {
    problems.push_back(origin + ": version = " + std::to_string(kVersion) +
                       " is missing: it says which keys a machine has");
  } else if (version->integer != kVersion) {
    problems.push_back(origin + ": version " + std::to_string(version->integer) +
                       "; this program reads version " + std::to_string(kVersion));
  }
  described.name = top.text("name");
  described.rates.source = top.text("measured");
  described.program = top.text("program");
  described.sources = top.texts("sources");
  described.watts = top.number("watts");
  bool host = false;
  top.each("host", [&](TableReader& table) {
    host = true;
    read_host(table, described.machine);
  });
  if (!host) problems.push_back(origin + ": [host] is missing");
  top.each("gpu", [&](TableReader& table) { read_gpu(table, described.machine); });
  top.each("rates", [&](TableReader& table) { read_rates(table, described.rates); });
  top.end();
  if (!problems.empty()) throw ConfigError(problems);
  if (described.rates.source.empty()) described.rates.source = origin;
  if (described.name.empty()) described.name = origin;
  return described;
}

}  // namespace longshore
