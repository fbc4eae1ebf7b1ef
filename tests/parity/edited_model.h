// EditedModel: a copy of a golden model with other weights in a scratch directory. Test code.
#pragma once

#include <bit>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "hf/safetensors_reader.h"
#include "hf/safetensors_writer.h"
#include "tests/parity/run_driver.h"

namespace longshore {

class EditedModel {
 public:
  // Two models of one golden case at a time have different suffixes.
  explicit EditedModel(const std::string& golden, const std::string& suffix = "")
      : directory_(scratch_directory("edited-" + golden + suffix)),
        golden_(golden_directory(golden)) {
    std::filesystem::create_directories(directory_);
    const auto file = SafetensorsFile::open(golden_ + "/model.safetensors");
    for (const TensorInfo& tensor : file.tensors()) shapes[tensor.name] = tensor.shape;
    values = read_tensors(golden_ + "/model.safetensors");
    std::filesystem::copy(golden_ + "/config.json", directory_);
  }
  EditedModel(const EditedModel&) = delete;
  EditedModel& operator=(const EditedModel&) = delete;
  ~EditedModel() { std::filesystem::remove_all(directory_); }

  const std::string& directory() const { return directory_; }
  void remove(const std::string& name) { values.erase(name), shapes.erase(name); }
  // Writes the values, in bf16 cut after their upper halves.
  void write(TensorDType dtype = TensorDType::kF32) const {
    std::filesystem::remove(directory_ + "/model.safetensors");
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (const auto& [name, shape] : shapes) tensors.push_back({name, dtype, shape});
    SafetensorsWriter writer(directory_ + "/model.safetensors", tensors, {{"format", "pt"}});
    for (const auto& [name, shape] : shapes) {
      const std::vector<float>& whole = values.at(name);
      std::vector<uint16_t> upper;
      for (const float value : whole) {
        upper.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
      }
      writer.append(dtype == TensorDType::kF32 ? std::as_bytes(std::span(whole))
                                               : std::as_bytes(std::span(upper)));
    }
    writer.finish();
  }

  std::map<std::string, std::vector<float>> values;
  std::map<std::string, std::vector<int64_t>> shapes;

 private:
  std::string directory_, golden_;
};

}  // namespace longshore
