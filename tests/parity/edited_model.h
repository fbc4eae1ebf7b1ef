// EditedModel: a copy of a golden model with other weights in a scratch directory. Test code.
#pragma once

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
  explicit EditedModel(const std::string& golden)
      : directory_(scratch_directory("edited-" + golden)), golden_(golden_directory(golden)) {
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
  void write() const {
    std::filesystem::remove(directory_ + "/model.safetensors");
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (const auto& [name, shape] : shapes) tensors.push_back({name, TensorDType::kF32, shape});
    SafetensorsWriter writer(directory_ + "/model.safetensors", tensors, {{"format", "pt"}});
    for (const auto& [name, shape] : shapes)
      writer.append(std::as_bytes(std::span(values.at(name))));
    writer.finish();
  }

  std::map<std::string, std::vector<float>> values;
  std::map<std::string, std::vector<int64_t>> shapes;

 private:
  std::string directory_, golden_;
};

}  // namespace longshore
