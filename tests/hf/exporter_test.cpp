#include "hf/exporter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <set>

#include "base/number_formats.h"
#include "hf/tensor_dtype.h"
#include "hf/weight_index.h"
#include "hf/weight_loader.h"
#include "tests/hf/hf_fixtures.h"

namespace longshore {
namespace {

constexpr const char* kConfig =
    "{\n  \"model_type\" : \"llama\",\t\"torch_dtype\": \"bfloat16\"\n}";
constexpr int64_t kLargeElements = 300'000;  // more than one chunk

// A model of two files: a bf16 matrix, a frozen fp32 vector and a buffer without parameter in one;
// an fp16 vector in the other.
class Exporter : public testing::Test {
 protected:
  void SetUp() override {
    write_text(source_ / "config.json", kConfig);
    write_text(source_ / "tokenizer.json", "{ \"as it\":\"is\" }");
    write_text(source_ / "additional_chat_templates/tool.jinja", "{{ x }}\r\n");
    write_text(source_ / "pytorch_model.bin", "stale weights");
    write_safetensors(source_ / "model-1.safetensors",
                      {{"matrix", TensorDType::kBF16, {kLargeElements / 2, 2}},
                       {"frozen", TensorDType::kF32, {5}},
                       {"buffer", TensorDType::kU8, {7}}});
    write_safetensors(source_ / "model-2.safetensors", {{"half", TensorDType::kF16, {9}}}, {});
    const Bytes total = kLargeElements * 2 + 20 + 7 + 18;
    write_text(source_ / "model.safetensors.index.json",
               R"({"weight_map": {"half": "model-2.safetensors", "matrix": "model-1.safetensors",)"
               R"( "frozen": "model-1.safetensors", "buffer": "model-1.safetensors"},)"
               R"( "metadata": {"other": 1, "total_size": )" +
                   std::to_string(total) + "}}");
  }

  static ModelSpec spec() {
    return spec_of({parameter("matrix", {kLargeElements / 2, 2}), parameter("frozen", {5}, true),
                    parameter("half", {9})});
  }
  ModelDirectory open_source(
      ModelDirectory::Weights weights = ModelDirectory::Weights::kRequired) const {
    return ModelDirectory::open(source_.path(), weights);
  }
  // Returns a reader of the source's own values.
  static ParameterReader reader_of(const ModelDirectory& source) {
    return [&source](const std::string& name, int64_t begin, std::span<float> out) {
      const ModelDirectory::TensorRef ref = source.find(name);
      read_elements(ref.file->file, *ref.tensor, begin, out);
    };
  }
  static void no_values(const std::string& name, int64_t, std::span<float>) {
    ADD_FAILURE() << "asked for " << name;
  }
  std::string target(const std::string& name = "out/hf") const { return work_ / name; }

  TemporaryDirectory source_;
  TemporaryDirectory work_;
};

// Sets values that depend on name and element, exact in bf16 and fp16.
void made_up_values(const std::string& name, int64_t begin, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t element = begin + static_cast<int64_t>(i);
    out[i] = static_cast<float>((element * 7 + name[0]) % 127) / 64.0f;
  }
}

std::vector<float> values_of(const ModelDirectory& model, const std::string& name) {
  const ModelDirectory::TensorRef ref = model.find(name);
  std::vector<float> values(static_cast<size_t>(ref.tensor->elements()));
  read_elements(ref.file->file, *ref.tensor, 0, values);
  return values;
}

std::set<std::string> names_in(const std::string& path) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    names.insert(entry.path().filename());
  }
  return names;
}

// An export of an untrained model has every byte of the source's files.
TEST_F(Exporter, WritesAnUnchangedModelByteForByte) {
  const ModelDirectory source = open_source();
  const ExportResult result = export_model(source, spec(), target(), reader_of(source));
  EXPECT_EQ(result.tensors, 4);
  EXPECT_EQ(result.files,
            (std::vector<std::string>{"additional_chat_templates/tool.jinja", "config.json",
                                      "model-1.safetensors", "model-2.safetensors",
                                      "model.safetensors.index.json", "tokenizer.json"}));
  Bytes bytes = 0;
  for (const std::string& name : result.files) {
    bytes += static_cast<Bytes>(std::filesystem::file_size(target() + "/" + name));
    if (name == "model-2.safetensors") continue;  // gains the metadata that it lacked
    EXPECT_EQ(read_file(target() + "/" + name), read_file(source_ / name)) << name;
  }
  EXPECT_EQ(result.bytes, bytes);
  EXPECT_EQ(names_in(work_ / "out"), std::set<std::string>{"hf"});
  const ModelDirectory written = ModelDirectory::open(target());
  EXPECT_TRUE(written.same_bytes(written.find("half"), source.find("half")));
  EXPECT_EQ(written.find("half").file->file.metadata(), (SafetensorsMetadata{{"format", "pt"}}));
}

// An export has the trained values, and the frozen parameters and buffers of the source.
TEST_F(Exporter, WritesTrainedValuesAndKeepsFrozenOnesAndBuffers) {
  const ModelDirectory source = open_source();
  export_model(source, spec(), target(), made_up_values);
  const ModelDirectory written = ModelDirectory::open(target());
  for (const std::string name : {"matrix", "half"}) {
    const std::vector<float> values = values_of(written, name);
    std::vector<float> expected(values.size());
    made_up_values(name, 0, expected);
    EXPECT_EQ(values, expected) << name;
    EXPECT_EQ(written.find(name).tensor->dtype, source.find(name).tensor->dtype);
  }
  for (const std::string name : {"frozen", "buffer"}) {
    EXPECT_TRUE(written.same_bytes(written.find(name), source.find(name))) << name;
  }
}

// Small files are exported as they were when the model was read, although they changed since.
TEST_F(Exporter, HasTheSmallFilesThatTheModelWasReadWith) {
  write_text(source_ / "generation_config.json", R"({"temperature": 0.5})");
  const ModelDirectory source = open_source();
  write_text(source_ / "config.json", R"({"model_type": "llama", "rms_norm_eps": 0.1})");
  write_text(source_ / "generation_config.json", R"({"temperature": 2.0})");
  std::filesystem::remove(source_ / "tokenizer.json");
  export_model(source, spec(), target(), reader_of(source));
  EXPECT_EQ(read_file(target() + "/config.json"), kConfig);
  EXPECT_EQ(read_file(target() + "/generation_config.json"), R"({"temperature": 0.5})");
  EXPECT_EQ(read_file(target() + "/tokenizer.json"), "{ \"as it\":\"is\" }");
}

// A large file is copied if it is still the one that lay beside the model, and refused otherwise.
TEST_F(Exporter, RefusesALargeFileThatChanged) {
  const std::string large(static_cast<size_t>(kMaxKeptCompanion) + 1, 'x');
  write_text(source_ / "tokenizer.json", large);
  const ModelDirectory source = open_source();
  export_model(source, spec(), target(), reader_of(source));
  EXPECT_TRUE(read_file(target() + "/tokenizer.json") == large);
  write_text(source_ / "other", large + "y");
  std::filesystem::rename(source_ / "other", source_ / "tokenizer.json");
  const auto again = [&] { export_model(source, spec(), target("again"), reader_of(source)); };
  expect_parts(error_of<DataError>(again), {"tokenizer.json: changed since the model was read"});
  std::filesystem::remove(source_ / "tokenizer.json");
  expect_parts(error_of<DataError>(again), {"tokenizer.json: cannot be read any more"});
}

// Values are rounded to the nearest, ties to even.
TEST_F(Exporter, RoundsToNearestEven) {
  const auto ties = [](const std::string&, int64_t begin, std::span<float> out) {
    for (size_t i = 0; i < out.size(); ++i) {
      const auto element = static_cast<uint32_t>(begin) + static_cast<uint32_t>(i);
      // The values lie halfway between two bf16 numbers, and just below and above.
      out[i] = std::bit_cast<float>(0x3F800000u + (element << 15) + element % 3 - 1);
    }
  };
  const ModelDirectory source = open_source();
  export_model(source, spec(), target(),
               [&](const auto& name, int64_t begin, auto out) {
                 name == "half" ? std::fill(out.begin(), out.end(), 1.0f + 0x1p-11f)
                                : ties(name, begin % 400, out);
               },
               {.allow_nonfinite = true});
  const ModelDirectory written = ModelDirectory::open(target());
  EXPECT_EQ(values_of(written, "half"), std::vector<float>(9, 1.0f));
  const std::vector<float> matrix = values_of(written, "matrix");
  std::vector<float> masters(400);
  ties("", 0, masters);
  for (size_t i = 0; i < 400; ++i) {
    EXPECT_EQ(matrix[i], bf16_to_float(float_to_bf16_nearest(masters[i]))) << i;
  }
}

// An export in fp32 has exact values, and config.json names the type.
TEST_F(Exporter, WritesFp32OnRequestAndSaysSoInTheConfig) {
  const ModelDirectory source = open_source();
  const auto third = [](const std::string&, int64_t, std::span<float> out) {
    std::fill(out.begin(), out.end(), 1.0f / 3.0f);
  };
  export_model(source, spec(), target(), third, {.dtype = DType::kF32});
  const ModelDirectory written = ModelDirectory::open(target());
  EXPECT_EQ(values_of(written, "matrix")[kLargeElements - 1], 1.0f / 3.0f);
  EXPECT_EQ(values_of(written, "half"), std::vector<float>(9, 1.0f / 3.0f));
  EXPECT_TRUE(written.same_bytes(written.find("frozen"), source.find("frozen")));
  EXPECT_TRUE(written.same_bytes(written.find("buffer"), source.find("buffer")));
  EXPECT_EQ(written.config_text(),
            "{\n  \"model_type\" : \"llama\",\t\"torch_dtype\": \"float32\"\n}");
  EXPECT_EQ(written.index_total_size(), written.weight_bytes());
  EXPECT_EQ(Json::parse(written.index_text()).at("metadata").at("other"), 1);
  EXPECT_TRUE(written.warnings().empty());
}

// Frozen parameters that are exported in another type keep their values.
TEST_F(Exporter, ConvertsFrozenParametersFromTheSource) {
  const ModelDirectory source = open_source();
  const ModelSpec frozen = spec_of({parameter("matrix", {kLargeElements / 2, 2}, true),
                                    parameter("frozen", {5}, true), parameter("half", {9}, true)});
  export_model(source, frozen, target(), no_values, {.dtype = DType::kF32});
  const ModelDirectory written = ModelDirectory::open(target());
  for (const std::string name : {"matrix", "frozen", "half"}) {
    EXPECT_EQ(written.find(name).tensor->dtype, TensorDType::kF32);
    EXPECT_EQ(values_of(written, name), values_of(source, name)) << name;
  }
}

// A finite value that the type cannot hold is refused instead of becoming infinity.
TEST_F(Exporter, RefusesToTurnAFiniteValueIntoInfinity) {
  const ModelDirectory source = open_source();
  const auto large = [](const std::string&, int64_t, std::span<float> out) {
    std::fill(out.begin(), out.end(), 65'520.0f);
  };
  const std::string error =
      error_of<DataError>([&] { export_model(source, spec(), target(), large); });
  expect_parts(error, {"tensor 'half'", "too large for F16", "fp32"});
  EXPECT_TRUE(names_in(work_ / "out").empty());
}

// --- Models that started from random weights.

// A model whose source has no weights is exported with new weight files.
TEST_F(Exporter, WritesAModelWhoseSourceHasNoWeights) {
  for (const char* name :
       {"model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"}) {
    std::filesystem::remove(source_ / name);
  }
  const ModelDirectory source = open_source(ModelDirectory::Weights::kOptional);
  export_model(source, spec(), target(), made_up_values, {.pretrained = false});
  const ModelDirectory written = ModelDirectory::open(target());
  ASSERT_EQ(written.files().size(), 1u);
  EXPECT_EQ(written.files().front()->name, "model.safetensors");
  const WeightLoader loader(written, spec(), {});
  for (const std::string name : {"matrix", "frozen", "half"}) {
    EXPECT_EQ(loader.stored_dtype(name), DType::kBF16);
    const std::vector<float> values = values_of(written, name);
    std::vector<float> expected(values.size());
    made_up_values(name, 0, expected);
    EXPECT_EQ(values, expected) << name;
  }
}

// New weights are split into files of limited size with an index.
TEST_F(Exporter, SplitsNewWeightsIntoFilesOfLimitedSize) {
  for (const char* name :
       {"model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"}) {
    std::filesystem::remove(source_ / name);
  }
  const ModelDirectory source = open_source(ModelDirectory::Weights::kOptional);
  const ModelSpec small = spec_of({parameter("z", {10}), parameter("large", {100}),
                                   parameter("y", {20}), parameter("x", {20})});
  export_model(source, small, target(), made_up_values,
               {.dtype = DType::kF32, .pretrained = false, .max_file_bytes = 160});
  const ModelDirectory written = ModelDirectory::open(target());
  std::vector<std::string> names;
  for (const auto& file : written.files()) names.push_back(file->name);
  EXPECT_EQ(names, (std::vector<std::string>{"model-00001-of-00003.safetensors",
                                             "model-00002-of-00003.safetensors",
                                             "model-00003-of-00003.safetensors"}));
  EXPECT_EQ(written.find("x").file->name, written.find("y").file->name);
  EXPECT_EQ(written.index_total_size(), 600);
  EXPECT_EQ(written.index_text(),
            "{\n  \"metadata\": {\n    \"total_size\": 600\n  },\n  \"weight_map\": {\n"
            "    \"large\": \"model-00002-of-00003.safetensors\",\n"
            "    \"x\": \"model-00003-of-00003.safetensors\",\n"
            "    \"y\": \"model-00003-of-00003.safetensors\",\n"
            "    \"z\": \"model-00001-of-00003.safetensors\"\n  }\n}\n");
  EXPECT_EQ(config_dtype(written.config()), DType::kF32);
}

// With pretrained = false the layout is the source's, but no value is.
TEST_F(Exporter, TakesNoParameterFromTheSourceOfARandomModel) {
  const ModelDirectory source = open_source();
  export_model(source, spec(), target(), made_up_values, {.pretrained = false});
  const ModelDirectory written = ModelDirectory::open(target());
  std::vector<float> expected(5);
  made_up_values("frozen", 0, expected);
  EXPECT_EQ(values_of(written, "frozen"), expected);
  EXPECT_EQ(written.files().size(), 2u);
}

// A model with other tensors than the source is refused with their names.
TEST_F(Exporter, RefusesAModelThatIsNotTheSources) {
  const ModelDirectory source = open_source();
  const ModelSpec other = spec_of({parameter("matrix", {2, 2}), parameter("absent", {1})});
  const std::string error =
      error_of<DataError>([&] { export_model(source, other, target(), no_values); });
  expect_parts(error, {source_.path(), "tensor 'matrix'", "[2, 2]", "tensor 'absent'"});
}

// --- Destinations.

// An older export is replaced as a whole.
TEST_F(Exporter, ReplacesAnOlderExportAsAWhole) {
  export_model(open_source(), spec(), target(), made_up_values);
  ASSERT_TRUE(std::filesystem::exists(target() + "/tokenizer.json"));
  std::filesystem::remove(source_ / "tokenizer.json");
  write_text(source_ / "vocab.json", "{}");
  const ModelDirectory source = open_source();
  export_model(source, spec(), target(), reader_of(source));
  EXPECT_FALSE(std::filesystem::exists(target() + "/tokenizer.json"));
  EXPECT_EQ(read_file(target() + "/vocab.json"), "{}");
  EXPECT_EQ(read_file(target() + "/model-1.safetensors"),
            read_file(source_ / "model-1.safetensors"));
  EXPECT_EQ(names_in(work_ / "out"), std::set<std::string>{"hf"});
}

// A failed export leaves the older one unchanged.
TEST_F(Exporter, KeepsTheOlderExportWhenItFails) {
  const ModelDirectory source = open_source();
  export_model(source, spec(), target(), made_up_values);
  const std::string before = read_file(target() + "/model-2.safetensors");
  const auto failing = [](const std::string& name, int64_t, std::span<float> out) {
    if (name == "half") throw IoError("the state is gone");
    std::fill(out.begin(), out.end(), 0.0f);
  };
  expect_parts(error_of<IoError>([&] { export_model(source, spec(), target(), failing); }),
               {"the state is gone"});
  EXPECT_EQ(read_file(target() + "/model-2.safetensors"), before);
  EXPECT_EQ(names_in(work_ / "out"), std::set<std::string>{"hf"});
}

// Values that are not finite are refused unless allowed.
TEST_F(Exporter, RefusesNonFiniteValuesUnlessTold) {
  const ModelDirectory source = open_source();
  const auto diverged = [](const std::string& name, int64_t begin, std::span<float> out) {
    std::fill(out.begin(), out.end(), 0.0f);
    if (name == "half") out.front() = std::nanf("");
    if (name == "matrix" && begin == 0) out[1] = 0.5f;
  };
  expect_parts(error_of<DataError>([&] { export_model(source, spec(), target(), diverged); }),
               {"tensor 'half' holds nan", "--allow-nonfinite"});
  EXPECT_TRUE(names_in(work_ / "out").empty());
  export_model(source, spec(), target(), diverged, {.allow_nonfinite = true});
  EXPECT_TRUE(std::isnan(values_of(ModelDirectory::open(target()), "half").front()));
}

// A flipped bit on disk is found before the export replaces the older one.
TEST_F(Exporter, FindsBytesThatCameBackDifferent) {
  const ModelDirectory source = open_source();
  for (const std::string name : {"model-1.safetensors", "tokenizer.json"}) {
    // The last parameter is written when these files are complete.
    const auto spoiling = [&](const std::string& parameter, int64_t, std::span<float> out) {
      std::fill(out.begin(), out.end(), 0.0f);
      if (parameter != "half") return;
      const std::string path = target() + ".longshore-partial/" + name;
      std::string bytes = read_file(path);
      bytes.back() = static_cast<char>(bytes.back() ^ 1);
      write_text(path, bytes);
    };
    const std::string error =
        error_of<IoError>([&] { export_model(source, spec(), target(), spoiling); });
    expect_parts(error, {name, "read back with another checksum"});
    EXPECT_TRUE(names_in(work_ / "out").empty());
  }
}

// Leftovers of a killed export are removed: the older export that earlier versions moved aside, and
// a partial one with the list of its files.
TEST_F(Exporter, ClearsUpAfterAnExportThatWasKilled) {
  write_text(target() + ".longshore-old/config.json", "old");
  const std::string partial = target() + ".longshore-partial";
  write_text(partial + "/model-1.safetensors", "part");
  write_text(partial + "/.longshore-export.json", R"({"writing": ["model-1.safetensors"]})");
  const ModelDirectory source = open_source();
  const auto failing = [](const std::string&, int64_t, std::span<float>) { throw IoError("no"); };
  EXPECT_THROW(export_model(source, spec(), target(), failing), ConfigError);
  EXPECT_EQ(read_file(target() + "/config.json"), "old");
  std::filesystem::remove_all(target());
  export_model(source, spec(), target(), made_up_values);
  EXPECT_EQ(names_in(work_ / "out"), std::set<std::string>{"hf"});
}

// Goal: a kill while the first list or the last one was written leaves nothing behind the next
// export.
TEST_F(Exporter, ClearsUpAfterAnExportThatWasKilledInItsFirstWrite) {
  const ModelDirectory source = open_source();
  const std::string partial = target() + ".longshore-partial";
  const std::string temporary = partial + "/.longshore-export.json.tmp.0123456789abcdef";
  write_text(temporary, R"({"writ)");
  export_model(source, spec(), target(), made_up_values);
  EXPECT_EQ(names_in(work_ / "out"), std::set<std::string>{"hf"});
  write_text(temporary, R"({"writ)");
  write_text(partial + "/.longshore-export.json", R"({"writing": ["model-1.safetensors"]})");
  export_model(source, spec(), target(), made_up_values);
  EXPECT_EQ(names_in(work_ / "out"), std::set<std::string>{"hf"});
  write_text(partial + "/.longshore-export.json.tmp.mine", "beside");
  export_model(source, spec(), target(), made_up_values);
  EXPECT_EQ(read_file(partial + "/.longshore-export.json.tmp.mine"), "beside");
}

// A kill after the exchange of directories leaves the older export as partial; it is removed.
TEST_F(Exporter, ClearsUpAfterAnExportThatWasKilledAtItsEnd) {
  const ModelDirectory source = open_source();
  const std::string partial = target() + ".longshore-partial";
  export_model(source, spec(), target(), made_up_values);
  export_model(source, spec(), partial, made_up_values);
  write_text(target() + "/notes.txt", "mine");
  std::filesystem::create_hard_link(target() + "/notes.txt", partial + "/notes.txt");
  export_model(source, spec(), target(), made_up_values);
  EXPECT_EQ(names_in(work_ / "out"), std::set<std::string>{"hf"});
  EXPECT_EQ(read_file(target() + "/notes.txt"), "mine");
}

// Goal: an export leaves foreign files in or beside its destination unchanged, or is refused.
TEST_F(Exporter, LeavesWhatOthersPutThere) {
  write_text(source_ / "README.md", "of the base model");
  const ModelDirectory source = open_source();
  export_model(source, spec(), target(), made_up_values);
  EXPECT_EQ(read_file(target() + "/README.md"), "of the base model");
  write_text(target() + "/README.md", "my model card");
  write_text(target() + "/notes.txt", "mine");
  write_text(target() + "/additional_chat_templates/own.jinja", "mine too");
  std::filesystem::create_symlink("notes.txt", target() + "/link");
  write_text(target() + ".longshore-partial/thesis.txt", "beside");
  export_model(source, spec(), target(), reader_of(source));
  EXPECT_EQ(read_file(target() + "/README.md"), "my model card");
  EXPECT_EQ(read_file(target() + "/notes.txt"), "mine");
  EXPECT_EQ(read_file(target() + "/additional_chat_templates/own.jinja"), "mine too");
  EXPECT_EQ(std::filesystem::read_symlink(target() + "/link"), "notes.txt");
  EXPECT_EQ(read_file(target() + ".longshore-partial/thesis.txt"), "beside");
  EXPECT_EQ(read_file(target() + "/model-1.safetensors"),
            read_file(source_ / "model-1.safetensors"));
  EXPECT_EQ(names_in(work_ / "out"), (std::set<std::string>{"hf", "hf.longshore-partial"}));
  export_model(source, spec(), target(), made_up_values);
  EXPECT_EQ(read_file(target() + "/README.md"), "my model card");
}

// Goal: the export's card describes the trained model, the base's card is kept, and a card that a
// user edited is not replaced.
TEST_F(Exporter, WritesACardBesideTheBasesOwn) {
  write_text(source_ / "README.md", "of the base model");
  const ModelDirectory source = open_source();
  export_model(source, spec(), target(), made_up_values, {.card = "the card"});
  EXPECT_EQ(read_file(target() + "/README.md"), "the card");
  EXPECT_EQ(read_file(target() + "/BASE_README.md"), "of the base model");
  export_model(source, spec(), target(), made_up_values, {.card = "a newer card"});
  EXPECT_EQ(read_file(target() + "/README.md"), "a newer card");
  write_text(target() + "/README.md", "my model card");
  export_model(source, spec(), target(), made_up_values, {.card = "the newest card"});
  EXPECT_EQ(read_file(target() + "/README.md"), "my model card");
  EXPECT_EQ(read_file(target() + "/BASE_README.md"), "of the base model");
  // A model trained from the export has the export's card as its base card.
  const ModelDirectory trained = ModelDirectory::open(target());
  const std::string next = work_ / "next";
  export_model(trained, spec(), next, made_up_values, {.card = "of the second"});
  EXPECT_EQ(read_file(next + "/README.md"), "of the second");
  EXPECT_EQ(read_file(next + "/BASE_README.md"), "my model card");
}

// Files that are not an export's own are not replaced.
TEST_F(Exporter, RefusesToReplaceFilesThatAreNotItsOwn) {
  const ModelDirectory source = open_source();
  const auto refusal = [&](const std::string& path) {
    const std::string error =
        error_of<ConfigError>([&] { check_export_destination(source, spec(), path); });
    EXPECT_THROW(export_model(source, spec(), path, made_up_values), ConfigError);
    return error;
  };
  // The directory holds another model without a list of files.
  write_text(work_ / "other/config.json", "{}");
  write_text(work_ / "other/model-1.safetensors", "weights");
  expect_parts(refusal(work_ / "other"), {work_ / "other/config.json", "not written by an export"});
  EXPECT_EQ(read_file(work_ / "other/model-1.safetensors"), "weights");
  // The owner changed an export's file since, keeping its length.
  export_model(source, spec(), target(), made_up_values);
  std::string edited = read_file(target() + "/config.json");
  edited[0] = ' ';
  write_text(target() + "/config.json", edited);
  expect_parts(refusal(target()), {target() + "/config.json", "changed since"});
  EXPECT_EQ(read_file(target() + "/config.json"), edited);
  EXPECT_EQ(names_in(work_ / "out"), std::set<std::string>{"hf"});
}

// Goal: after an export no program that loads the directory can find other weights in it. Foreign
// weights of any format are refused, even where their names are not those of the export's files.
TEST_F(Exporter, RefusesADirectoryWithOtherWeights) {
  const ModelDirectory source = open_source();
  for (const char* name :
       {"model.safetensors", "model-00001-of-00002.safetensors", "adapter_model.safetensors",
        "adapter_model.bin", "adapter_config.json", "pytorch_model.bin",
        "pytorch_model.bin.index.json", "consolidated.safetensors", "consolidated.00.pth",
        "old.gguf", "tf_model.h5", "flax_model.msgpack", "model.onnx"}) {
    const std::string path = work_ / (std::string("of-") + name);
    write_text(path + "/" + name, "other weights");
    const std::string error =
        error_of<ConfigError>([&] { check_export_destination(source, spec(), path); });
    expect_parts(error, {path + "/" + name, "other weights", "name another directory"});
    EXPECT_THROW(export_model(source, spec(), path, made_up_values), ConfigError);
    EXPECT_EQ(names_in(path), std::set<std::string>{name});
  }
  // A file that a trainer left is not loaded as a model, so it stays; a link to weights is loaded.
  write_text(target() + "/training_args.bin", "mine");
  export_model(source, spec(), target(), made_up_values);
  EXPECT_EQ(read_file(target() + "/training_args.bin"), "mine");
  std::filesystem::create_symlink("/elsewhere", target() + "/model.safetensors");
  EXPECT_THROW(export_model(source, spec(), target(), made_up_values), ConfigError);
}

// Goal: an export in one file replaces an older export in several, and the other way round, so that
// nothing of the older one can be loaded.
TEST_F(Exporter, ReplacesShardsByOneFileAndOneFileByShards) {
  const ModelDirectory source = open_source();
  const ModelSpec model = spec_of({parameter("matrix", {8, 2}), parameter("half", {9})});
  const ExportOptions whole{.pretrained = false};
  const ExportOptions split{.pretrained = false, .max_file_bytes = 32};
  const auto weights = [this] {
    std::set<std::string> names;
    for (const std::string& name : names_in(target())) {
      if (name.find("safetensors") != std::string::npos) names.insert(name);
    }
    return names;
  };
  export_model(source, model, target(), made_up_values, split);
  const std::set<std::string> shards = weights();
  EXPECT_GT(shards.size(), 2u);
  EXPECT_FALSE(shards.contains("model.safetensors"));
  export_model(source, model, target(), made_up_values, whole);
  EXPECT_EQ(weights(), std::set<std::string>{"model.safetensors"});
  export_model(source, model, target(), made_up_values, split);
  EXPECT_EQ(weights(), shards);
}

// A destination that is no export is never replaced.
TEST_F(Exporter, NeverReplacesWhatIsNoExport) {
  const ModelDirectory source = open_source();
  const auto refusal = [&](const std::string& path) {
    const std::string error =
        error_of<ConfigError>([&] { check_export_destination(source, spec(), path); });
    EXPECT_THROW(export_model(source, spec(), path, no_values), ConfigError);
    return error;
  };
  write_text(work_ / "file", "x");
  expect_parts(refusal(work_ / "file"), {"not a directory"});
  write_text(work_ / "mixed/config.json", "{}");
  write_text(work_ / "mixed/thesis/chapter.txt", "x");
  expect_parts(refusal(work_ / "mixed"), {"holds thesis", "no export writes"});
  expect_parts(refusal(source_.path()), {"is the model that the run began with"});
  expect_parts(refusal(source_.path() + "/additional_chat_templates/.."),
               {"is the model that the run began with"});
  expect_parts(refusal(source_ / "additional_chat_templates"), {"lies in the model"});
  std::filesystem::create_directory_symlink(source_.path(), work_ / "link");
  expect_parts(refusal(work_ / "link"), {"is the model that the run began with"});
  expect_parts(refusal((work_ / "link") + "/"), {"is the model that the run began with"});
  std::filesystem::create_directories(work_ / "elsewhere");
  std::filesystem::create_directory_symlink("elsewhere", work_ / "other-link");
  expect_parts(refusal(work_ / "other-link"), {"is a symbolic link"});
  expect_parts(refusal("/"), {"a directory of its own"});
  EXPECT_TRUE(names_in(work_ / "elsewhere").empty());
}

// An empty directory and a trailing slash are accepted.
TEST_F(Exporter, AcceptsAnEmptyDirectoryAndATrailingSlash) {
  std::filesystem::create_directories(target());
  const ModelDirectory source = open_source();
  const ExportResult result = export_model(source, spec(), target() + "/", made_up_values);
  EXPECT_EQ(std::filesystem::path(result.path), std::filesystem::weakly_canonical(target()));
  EXPECT_EQ(names_in(work_ / "out"), std::set<std::string>{"hf"});
}

// --- The type that config.json names.

// The type is read from "dtype", else from "torch_dtype", also in text_config.
TEST(ConfigDtype, ReadsBothSpellings) {
  const auto dtype = [](const char* text) { return config_dtype(Json::parse(text)); };
  EXPECT_EQ(dtype(R"({"torch_dtype": "bfloat16"})"), DType::kBF16);
  EXPECT_EQ(dtype(R"({"dtype": "float16", "torch_dtype": "bfloat16"})"), DType::kF16);
  EXPECT_EQ(dtype(R"({"text_config": {"dtype": "float32"}})"), DType::kF32);
  EXPECT_EQ(dtype(R"({"dtype": null})"), std::nullopt);
  EXPECT_EQ(dtype(R"({"dtype": "auto"})"), std::nullopt);
  EXPECT_EQ(dtype("{}"), std::nullopt);
}

// Only the type of the model is replaced in the text of config.json.
TEST(ConfigDtype, ReplacesOnlyTheTypeOfTheModel) {
  const std::string text = R"({"note": "\"dtype\": \"bfloat16\"", "vision_config": {"dtype":
    "bfloat16"}, "text_config":{"torch_dtype" :"bfloat16", "deep": {"dtype": "x"}},
    "list": ["dtype", {"dtype": "bfloat16"}], "other": "dtype", "dtype"
    : "bfloat16", "torch_dtype": null})";
  const std::string expected = R"({"note": "\"dtype\": \"bfloat16\"", "vision_config": {"dtype":
    "bfloat16"}, "text_config":{"torch_dtype" :"float32", "deep": {"dtype": "x"}},
    "list": ["dtype", {"dtype": "bfloat16"}], "other": "dtype", "dtype"
    : "float32", "torch_dtype": null})";
  EXPECT_EQ(with_config_dtype(text, DType::kF32), expected);
}

}  // namespace
}  // namespace longshore
