#include "tests/fakes/golden_weights.h"

#include <unistd.h>

#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/errors.h"
#include "base/json.h"
#include "base/random.h"

namespace longshore {
namespace {

constexpr double kUnit = 0x1.bb67ae8584caap-22;  // sqrt(3) / 2^22

}  // namespace

std::vector<float> draw_golden(uint32_t key, uint32_t number, const Json& tensor) {
  size_t columns = 1;
  const auto shape = tensor.at(0).get<std::vector<size_t>>();
  for (size_t i = 1; i < shape.size(); ++i) columns *= shape[i];
  const auto mean = tensor.at(1).get<double>();
  const double factor = static_cast<float>(tensor.at(2).get<double>() * kUnit);
  std::vector<float> values(shape.at(0) * columns);
  for (size_t i = 0; i < values.size(); ++i) {
    int64_t sum = -(int64_t{1} << 23);
    for (const uint32_t word : philox4x32({static_cast<uint32_t>(i), number, 0, 0}, {key, 0})) {
      sum += word >> 10;
    }
    double value = mean + static_cast<double>(sum) * factor;
    if (tensor.size() > 3 && i % columns == 0) {
      const Json& first = tensor.at(3);
      value = first.is_array() ? first.at(i / columns).get<double>() : value + first.get<double>();
    }
    values[i] = static_cast<float>(value);
  }
  return values;
}

namespace {

void write_weights(const Json& recipe, const std::string& path) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string values;
  uint32_t number = 0;
  uint64_t sum = 0, place = 0;
  for (const auto& [name, tensor] : recipe.at("tensors").items()) {
    const std::vector<float> drawn =
        draw_golden(recipe.at("key").get<uint32_t>(), number++, tensor);
    for (const float value : drawn) sum += std::bit_cast<uint32_t>(value) * (2 * place++ + 1);
    const size_t begin = values.size();
    values.append(reinterpret_cast<const char*>(drawn.data()), drawn.size() * sizeof(float));
    header[name] = {
        {"dtype", "F32"}, {"shape", tensor.at(0)}, {"data_offsets", {begin, values.size()}}};
  }
  LONGSHORE_CHECK(sum % (uint64_t{1} << 63) == recipe.at("sum").get<uint64_t>()) << path;
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t bytes = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  file << text << values;
  LONGSHORE_CHECK(file.flush().good()) << path;
}

// The temporary folder of this process, which is removed when it exits; not by forked processes.
struct ProcessFolder {
  ProcessFolder() = default;
  ProcessFolder(const ProcessFolder&) = delete;
  ProcessFolder& operator=(const ProcessFolder&) = delete;
  ~ProcessFolder() {
    std::error_code ignored;
    if (::getpid() == owner) std::filesystem::remove_all(path, ignored);
  }
  const pid_t owner = ::getpid();
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("longshore-golden-" + std::to_string(owner));
};

}  // namespace

std::string with_weights(const std::string& golden_case) {
  const std::filesystem::path from = golden_case;
  if (!std::filesystem::exists(from / "weights.json")) return golden_case;
  static const ProcessFolder folder;
  const std::filesystem::path to = folder.path / from.filename();
  if (!std::filesystem::exists(to)) {
    std::filesystem::create_directories(folder.path);
    std::filesystem::copy(from, to);
    write_weights(read_json_file(to / "weights.json", JsonLimits{}), to / "model.safetensors");
  }
  return to;
}

}  // namespace longshore
