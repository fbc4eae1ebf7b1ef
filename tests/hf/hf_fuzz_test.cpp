// Random damage to valid files: the readers return or throw Longshore's own Error, and accepted
// files can be read. The sanitizer builds watch the memory.
#include <gtest/gtest.h>

#include <random>

#include "hf/adapter_directory.h"
#include "hf/dataset_card.h"
#include "hf/json_members.h"
#include "hf/model_directory.h"
#include "hf/mxfp4.h"
#include "hf/safetensors_header.h"
#include "hf/tensor_dtype.h"
#include "hf/weight_index.h"
#include "tests/hf/hf_fixtures.h"

namespace longshore {
namespace {

// These pieces turn damaged JSON into special cases.
const std::vector<std::string> kPieces = {"\"",
                                          "{",
                                          "}",
                                          "[",
                                          "]",
                                          ",",
                                          ":",
                                          "\\",
                                          "\\u0000",
                                          "\\ud800",
                                          "\xFF",
                                          "0",
                                          "-1",
                                          "1e9",
                                          "9223372036854775807",
                                          "4294967296",
                                          "\"shape\"",
                                          "\"dtype\"",
                                          "null",
                                          "true",
                                          "\"F16\"",
                                          " ",
                                          "\"a\"",
                                          "18446744073709551615",
                                          "\"__metadata__\"",
                                          "\"U8\"",
                                          "[0,0]",
                                          "&n ",
                                          "*n",
                                          "\n",
                                          "\n  ",
                                          "- ",
                                          ": ",
                                          "<<: ",
                                          "\t",
                                          "../",
                                          "model.safetensors"};

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  std::string operator()(std::string text) {
    for (size_t changes = 1 + below(4); changes > 0; --changes) change(text);
    return text;
  }

 private:
  size_t below(size_t limit) { return random_() % limit; }

  void change(std::string& text) {
    const size_t at = below(text.size() + 1);
    const size_t length = std::min(below(12), text.size() - at);
    switch (below(5)) {
      case 0:
        text.insert(at, kPieces[below(kPieces.size())]);
        break;
      case 1:
        text.replace(at, length, kPieces[below(kPieces.size())]);
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(below(text.size() + 1), text.substr(at, length * 4));
        break;
      default:
        if (at < text.size()) text[at] = static_cast<char>(random_());
    }
  }

  std::mt19937 random_;
};

void check_table(const SafetensorsHeader& header, Bytes data_begin, Bytes file_bytes) {
  Bytes end = data_begin;
  for (const TensorInfo& tensor : header.tensors) {
    ASSERT_EQ(tensor.file_begin, end);
    ASSERT_GE(tensor.bytes, 0);
    int64_t elements = 1;
    for (const int64_t dimension : tensor.shape) {
      ASSERT_FALSE(__builtin_mul_overflow(elements, dimension, &elements));
    }
    ASSERT_EQ(tensor.elements(), elements);
    end += tensor.bytes;
  }
  ASSERT_EQ(end, file_bytes);
}

// Damaged headers of safetensors files are read or refused.
TEST(Fuzz, SafetensorsHeadersAreReadOrRefused) {
  const std::string valid =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b\u00e9":{"dtype":"BF16","shape":[],"data_offsets":[24,26]},)"
      R"("e":{"dtype":"U8","shape":[0,4],"data_offsets":[26,26]}}   )";
  Mutator mutate(1);
  int accepted = 0;
  for (int i = 0; i < 100'000; ++i) {
    const std::string json = i == 0 ? valid : mutate(valid);
    const Bytes data_begin = kSafetensorsPrefixBytes + static_cast<Bytes>(json.size());
    try {
      const SafetensorsHeader header = parse_safetensors_header(json, data_begin + 26, "x");
      check_table(header, data_begin, data_begin + 26);
      ++accepted;
    } catch (const DataError&) {
    }
  }
  EXPECT_GT(accepted, 1000);  // tensors with other names, added spaces
}

// Damaged indexes are read or refused.
TEST(Fuzz, IndexesAreReadOrRefused) {
  const std::string valid =
      R"({"metadata": {"total_size": 38}, "weight_map": {"a": "model-1.safetensors",)"
      R"("b": "model-1.safetensors", "c": "model-2.safetensors"}})";
  Mutator mutate(2);
  for (int i = 0; i < 30'000; ++i) {
    try {
      const WeightIndex index = parse_weight_index(mutate(valid), "x");
      for (const auto& [file, tensors] : index.tensors_of_file) {
        ASSERT_EQ(file.find('/'), std::string::npos);
        ASSERT_FALSE(file.starts_with("."));
        ASSERT_FALSE(tensors.empty());
      }
    } catch (const DataError&) {
    }
  }
}

// Damaged cards of data sets are read or refused, and so is any other YAML.
TEST(Fuzz, CardsAreReadOrRefused) {
  const std::string valid =
      "---\nlicense: mit\nconfigs:\n- config_name: &n a\n  data_files: {train: [a/*, 'b']}\n"
      "  default: yes\n- {<<: &m {config_name: b}, data_dir: \"c\\u00e9\"}\n- *m\n"
      "- config_name: >-\n    c\n  data_files:\n  - split: test # one\n    path: !!str 1\n---\n";
  Mutator mutate(6);
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    try {
      const std::vector<DatasetConfig> configs =
          dataset_configs(i == 0 ? valid : mutate(valid), "x");
      accepted += configs.empty() ? 0 : 1;
    } catch (const DataError&) {
      ASSERT_GT(i, 0);
    }
  }
  EXPECT_GT(accepted, 100);  // other names
}

// Damaged MXFP4 pairs of tensors are refused, or every value can be read.
TEST(Fuzz, Mxfp4PairsAreReadOrRefused) {
  const std::string valid =
      R"({"w_blocks":{"dtype":"U8","shape":[2,3,2,16],"data_offsets":[0,192]},)"
      R"("w_scales":{"dtype":"U8","shape":[2,3,2],"data_offsets":[192,204]},)"
      R"("v_blocks":{"dtype":"U8","shape":[1,1,1,16],"data_offsets":[204,220]},)"
      R"("v_scales":{"dtype":"U8","shape":[1,1,1],"data_offsets":[220,221]}})";
  TemporaryDirectory directory;
  write_text(directory / "config.json",
             R"({"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}})");
  Mutator mutate(4);
  int accepted = 0;
  for (int i = 0; i < 5'000; ++i) {
    const std::string json = i == 0 ? valid : mutate(valid);
    write_text(directory / "model.safetensors", safetensors_bytes(json, 221));
    try {
      const ModelDirectory model = ModelDirectory::open(directory.path());
      for (const ModelDirectory::TensorRef& ref : model.tensors()) {
        if (ref.packed == nullptr) continue;
        std::vector<float> values(static_cast<size_t>(ref.tensor->elements()));
        ref.packed->read(0, values);
        accepted += i > 0 ? 1 : 0;
      }
    } catch (const Error&) {
    }
  }
  EXPECT_GT(accepted, 0);  // added spaces
}

// Damaged adapters are refused, or every value can be read.
TEST(Fuzz, AdaptersAreReadOrRefused) {
  const std::string config = R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none",)"
                             R"("target_modules": ["q"], "modules_to_save": ["n"]})";
  const std::string header =
      R"({"base_model.model.q.lora_A.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("base_model.model.q.lora_B.weight":{"dtype":"F16","shape":[1,2],"data_offsets":[24,28]},)"
      R"("base_model.model.n.weight":{"dtype":"BF16","shape":[3],"data_offsets":[28,34]}})";
  TemporaryDirectory directory;
  Mutator mutate(7);
  int accepted = 0;
  for (int i = 0; i < 10'000; ++i) {
    const bool damage_header = i % 2 == 1;
    write_text(directory / "adapter_config.json",
               i == 0 || damage_header ? config : mutate(config));
    write_text(directory / "adapter_model.safetensors",
               safetensors_bytes(damage_header ? mutate(header) : header, 34));
    try {
      const AdapterDirectory adapter = AdapterDirectory::open(directory.path());
      for (const std::string& name : adapter.names()) {
        int64_t elements = 1;
        for (const int64_t dimension : adapter.shape(name)) elements *= dimension;
        std::vector<float> values(static_cast<size_t>(elements));
        adapter.read(name, 0, values);
      }
      ASSERT_EQ(adapter.settings().rank, 2);
      ++accepted;
    } catch (const Error&) {
      ASSERT_GT(i, 0);
    }
  }
  EXPECT_GT(accepted, 100);  // other alphas, added spaces
}

// Removing quantization_config keeps the meaning of the rest of a config.
TEST(Fuzz, ConfigsKeepTheirMeaningWithoutQuantisation) {
  const std::string valid =
      R"({"a": "\"x\": }", "quantization_config" : {"b": ["{", {"k": "v"}]}, "c": [null], "d": 1})";
  Mutator mutate(5);
  for (int i = 0; i < 30'000; ++i) {
    const std::string text = mutate(valid);
    Json before;
    try {
      before = parse_json(text, {}, "x");
    } catch (const DataError&) {
      continue;
    }
    if (!before.is_object()) continue;
    before.erase("quantization_config");
    ASSERT_EQ(before, parse_json(without_member(text, "quantization_config"), {}, "x")) << text;
  }
}

// Replacing the type in a text that the strict reader accepts keeps the meaning of the rest.
TEST(Fuzz, ConfigsKeepTheirMeaningWhenTheTypeIsReplaced) {
  const std::string valid =
      R"({"a": "\"dtype\": \"x\"", "text_config": {"dtype": "bfloat16", "l": [1, {"k": "v"}]},)"
      R"( "torch_dtype" : "bfloat16", "n": null})";
  Mutator mutate(3);
  for (int i = 0; i < 30'000; ++i) {
    const std::string text = mutate(valid);
    Json before;
    try {
      before = parse_json(text, {}, "x");
    } catch (const DataError&) {
      continue;
    }
    Json after = parse_json(with_config_dtype(text, DType::kF32), {}, "x");
    for (const char* key : {"dtype", "torch_dtype"}) {
      for (Json* json : {&before, &after}) {
        if (json->is_object()) json->erase(key);
        if (json->is_object() && json->contains("text_config") &&
            (*json)["text_config"].is_object()) {
          (*json)["text_config"].erase(key);
        }
      }
    }
    ASSERT_EQ(before, after) << text;
  }
}

}  // namespace
}  // namespace longshore
