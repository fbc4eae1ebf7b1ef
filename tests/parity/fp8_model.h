// A golden model as its makers would publish it in block-scaled fp8: codes and scales of the
// blocks' matrices, everything else as it was. Test code.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "base/fp8.h"
#include "base/json.h"
#include "base/packed_format.h"
#include "tests/parity/edited_model.h"

namespace longshore {

// Routers are not packed, as in published models.
inline bool is_packed_matrix(const std::string& name, const std::vector<int64_t>& shape) {
  return shape.size() == 2 && name.starts_with("model.layers.") &&
         !name.ends_with(".mlp.gate.weight");
}

inline std::vector<std::byte> packed_matrix(PackedFormat format, std::span<const int64_t> shape,
                                            const std::vector<float>& values) {
  std::vector<std::byte> bytes(static_cast<size_t>(packed_bytes(format, shape)));
  encode_packed(
      format, shape,
      [&values](int64_t begin, std::span<float> out) {
        std::copy_n(values.begin() + begin, out.size(), out.begin());
      },
      bytes);
  return bytes;
}

// Writes the model in fp8 and replaces its values by those that the files then stand for.
inline void write_in_fp8(EditedModel& model) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  std::vector<std::vector<std::byte>> contents;
  const auto add = [&](SafetensorsWriter::Tensor tensor, std::span<const std::byte> bytes) {
    tensors.push_back(std::move(tensor));
    contents.emplace_back(bytes.begin(), bytes.end());
  };
  for (auto& [name, values] : model.values) {
    const std::vector<int64_t>& shape = model.shapes.at(name);
    if (!is_packed_matrix(name, shape)) {
      add({name, TensorDType::kF32, shape}, std::as_bytes(std::span(values)));
      continue;
    }
    const Fp8Layout layout(shape[0], shape[1]);
    const std::vector<std::byte> bytes = packed_matrix(PackedFormat::kFp8, shape, values);
    const auto part = [&](Bytes begin, Bytes count) {
      return std::span(bytes).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    };
    add({name, TensorDType::kF8E4M3, shape}, part(layout.codes_begin(), layout.elements()));
    add({name + "_scale_inv", TensorDType::kF32, {layout.block_rows(), layout.block_columns()}},
        part(0, layout.scales_bytes()));
    decode_fp8(layout, bytes, 0, values);
  }
  SafetensorsWriter writer(model.directory() + "/model.safetensors", tensors, {{"format", "pt"}});
  for (const std::vector<std::byte>& bytes : contents) writer.append(bytes);
  writer.finish();
  const std::string path = model.directory() + "/config.json";
  Json config = read_json_file(path, {});
  config["quantization_config"] = {
      {"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}};
  std::filesystem::remove(path);
  std::ofstream(path) << config.dump(2);
}

}  // namespace longshore
