#include "hf/model_directory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "hf/weight_index.h"
#include "tests/hf/hf_fixtures.h"

namespace longshore {
namespace {

constexpr const char* kConfig = R"({"model_type": "llama", "torch_dtype": "bfloat16"})";
const SafetensorsWriter::Tensor kA = {"a", TensorDType::kBF16, {4, 2}};
const SafetensorsWriter::Tensor kB = {"b", TensorDType::kF32, {3}};
const SafetensorsWriter::Tensor kC = {"c", TensorDType::kF16, {5}};

std::string index_text(const std::string& weight_map, const std::string& total_size = "38") {
  return R"({"metadata": {"total_size": )" + total_size + R"(}, "weight_map": )" + weight_map + "}";
}

constexpr const char* kGoodMap =
    R"({"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"})";

// IndexedDirectory: a directory with two weight files and their index.
class IndexedDirectory : public testing::Test {
 protected:
  void SetUp() override {
    write_text(directory_ / "config.json", kConfig);
    write_safetensors(directory_ / "model-1.safetensors", {kA, kB});
    write_safetensors(directory_ / "model-2.safetensors", {kC});
    write_index(index_text(kGoodMap));
  }
  void write_index(const std::string& text) {
    write_text(directory_ / "model.safetensors.index.json", text);
  }
  ModelDirectory open() const { return ModelDirectory::open(directory_.path()); }
  template <typename ErrorType>
  std::string open_error() const {
    return error_of<ErrorType>([this] { open(); });
  }

  TemporaryDirectory directory_;
};

class SingleDirectory : public testing::Test {
 protected:
  void SetUp() override {
    write_text(directory_ / "config.json", kConfig);
    write_safetensors(directory_ / "model.safetensors", {kA, kB, kC});
  }
  ModelDirectory open() const { return ModelDirectory::open(directory_.path()); }
  template <typename ErrorType>
  std::string open_error() const {
    return error_of<ErrorType>([this] { open(); });
  }

  TemporaryDirectory directory_;
};

// A directory with one weight file lists its tensors.
TEST_F(SingleDirectory, ListsItsTensors) {
  const ModelDirectory model = open();
  EXPECT_EQ(model.config().at("model_type"), "llama");
  EXPECT_EQ(model.config_text(), kConfig);
  EXPECT_EQ(model.generation_config(), nullptr);
  EXPECT_EQ(model.weight_bytes(), 38);
  ASSERT_EQ(model.tensors().size(), 3u);
  EXPECT_EQ(model.find("b").tensor->shape, std::vector<int64_t>{3});
  EXPECT_EQ(model.find("b").file->name, "model.safetensors");
  EXPECT_FALSE(model.find("d"));
  EXPECT_TRUE(model.warnings().empty());
}

// A directory with an index lists the tensors of all its files.
TEST_F(IndexedDirectory, ListsItsTensors) {
  const ModelDirectory model = open();
  ASSERT_EQ(model.files().size(), 2u);
  EXPECT_EQ(model.find("a").file->name, "model-1.safetensors");
  EXPECT_EQ(model.find("c").file->name, "model-2.safetensors");
  EXPECT_EQ(model.weight_bytes(), 38);
  EXPECT_EQ(model.index_total_size(), 38);
  EXPECT_TRUE(model.warnings().empty());
}

// generation_config.json is read if it exists.
TEST_F(SingleDirectory, ReadsTheGenerationConfig) {
  write_text(directory_ / "generation_config.json", R"({"eos_token_id": [1, 2]})");
  const ModelDirectory model = open();
  ASSERT_NE(model.generation_config(), nullptr);
  EXPECT_EQ(model.generation_config()->at("eos_token_id").size(), 2u);
}

// Tensors of two models are compared by type, shape and bytes.
TEST_F(SingleDirectory, ComparesTensorsByTypeShapeAndBytes) {
  const std::string path = directory_ / "model.safetensors";
  std::filesystem::remove(path);
  SafetensorsWriter writer(path,
                           {{"a", TensorDType::kU8, {2}},
                            {"same", TensorDType::kU8, {2}},
                            {"other bytes", TensorDType::kU8, {2}},
                            {"other shape", TensorDType::kU8, {2, 1}},
                            {"other type", TensorDType::kI8, {2}}},
                           {});
  writer.append(bytes_of(std::string_view("xyxyxzxyxy")));
  writer.finish();
  const ModelDirectory model = open();
  const auto same = [&](const char* name) {
    return model.same_bytes(model.find("a"), model.find(name));
  };
  EXPECT_TRUE(same("same"));
  EXPECT_FALSE(same("other bytes"));
  EXPECT_FALSE(same("other shape"));
  EXPECT_FALSE(same("other type"));
}

// The fingerprint depends on config.json and the headers, not on other files.
TEST_F(SingleDirectory, FingerprintDependsOnConfigAndHeaders) {
  const std::string before = open().fingerprint();
  EXPECT_EQ(before.size(), 16u);
  EXPECT_EQ(open().fingerprint(), before);
  write_text(directory_ / "tokenizer.json", "{}");
  EXPECT_EQ(open().fingerprint(), before);
  write_text(directory_ / "config.json", R"({"model_type": "qwen2"})");
  EXPECT_NE(open().fingerprint(), before);
  write_text(directory_ / "config.json", kConfig);
  std::filesystem::remove(directory_ / "model.safetensors");
  write_safetensors(directory_ / "model.safetensors", {kA, kC, kB});
  EXPECT_NE(open().fingerprint(), before);
}

// --- Directories that are no models, or cannot be trained.

// A path that is no model directory is refused with the reason.
TEST(ModelDirectory, RefusesWhatIsNoDirectory) {
  const TemporaryDirectory directory;
  const auto open_error = [](const std::string& path) {
    return error_of<ConfigError>([&] { ModelDirectory::open(path); });
  };
  expect_parts(open_error(directory / "absent"), {directory / "absent", "no such directory"});
  write_text(directory / "file", "");
  expect_parts(open_error(directory / "file"), {directory / "file", "not a directory"});
  expect_parts(open_error(directory.path()), {directory.path(), "no config.json"});
  std::filesystem::create_directories(directory / "snapshots/abc");
  expect_parts(open_error(directory.path()), {"one of the directories in its snapshots/"});
  // The directory of a run is named in place of its model.
  std::filesystem::create_directories(directory / "run/hf");
  write_text(directory / "run/hf/adapter_config.json", "{}");
  expect_parts(open_error(directory / "run"),
               {"the run's adapter is " + (directory / "run/hf"), "adapter.path continues it"});
  write_text(directory / "run/hf/config.json", "{}");
  expect_parts(open_error(directory / "run"), {"the run's model is " + (directory / "run/hf")});
  write_text(directory / "adapter_config.json", R"({"base_model_name_or_path": "Owner/Name"})");
  expect_parts(open_error(directory.path()),
               {directory.path(), "an adapter", "(Owner/Name)", "adapter.path"});
  write_text(directory / "adapter_config.json", "{}");
  expect_parts(open_error(directory.path()), {directory.path(), "an adapter", "adapter.path"});
}

// A config.json that is no JSON object is refused.
TEST_F(SingleDirectory, RefusesConfigsThatAreNotJsonObjects) {
  for (const char* text : {"", "[]", "{", "{\"a\": 1, \"a\": 2}", "{\"a\": nan}", "{} {}"}) {
    write_text(directory_ / "config.json", text);
    expect_parts(open_error<DataError>(), {directory_ / "config.json"});
  }
  write_text(directory_ / "config.json", "version https://git-lfs.github.com/spec/v1\noid 0\n");
  expect_parts(open_error<DataError>(), {directory_ / "config.json", "a Git LFS pointer"});
  write_text(directory_ / "config.json", kConfig);
  write_text(directory_ / "generation_config.json", "[1]");
  expect_parts(open_error<DataError>(), {directory_ / "generation_config.json", "JSON object"});
}

// NaN, infinities and large numbers are read as Python writes them; most published files have such
// an integer, and only the code that needs one refuses it.
TEST_F(SingleDirectory, ReadsNumbersAsPythonWritesThem) {
  write_text(directory_ / "config.json",
             R"({"model_type": "llama", "a": NaN, "b": -Infinity, "c": 1e400,
                 "length": 1000000000000000019884624838656})");
  const Json config = open().config();
  EXPECT_TRUE(config["a"].is_string());
  EXPECT_TRUE(config["b"].is_string());
  EXPECT_TRUE(config["c"].is_string());
  EXPECT_EQ(config["length"].get<double>(), 1e30);
}

// A config.json over 4 MiB is refused.
TEST_F(SingleDirectory, RefusesAConfigOverTheLimit) {
  write_text(directory_ / "config.json", "{" + std::string(5'000'000, ' ') + "}");
  expect_parts(open_error<DataError>(), {directory_ / "config.json", "limit of 4.0 MiB"});
}

// Quantised models are refused by the key that names the quantisation.
TEST_F(SingleDirectory, RefusesQuantisedModels) {
  std::filesystem::remove(directory_ / "model.safetensors");
  write_safetensors(directory_ / "model.safetensors",
                    {kA, kB, {"c.qweight", TensorDType::kI32, {2, 2}}});
  for (const char* text :
       {R"({"quantization_config": {"quant_method": "gptq"}})", R"({"compression_config": {}})",
        R"({"quantization": {"bits": 4}})",
        R"({"text_config": {"quantization_config": {"quant_method": "fp8"}}})"}) {
    write_text(directory_ / "config.json", text);
    expect_parts(open_error<ConfigError>(), {directory_ / "config.json", "quantised"});
  }
  write_text(directory_ / "config.json", R"({"quantization_config": null})");
  open();
}

// Goal: the files decide whether a model is quantised. Plain weights whose config.json still names
// a quantiser are trained, with one note, and neither the configuration nor its text has the key.
TEST_F(SingleDirectory, IgnoresAQuantisationThatPlainWeightsDoNotHave) {
  for (const std::string declared :
       {R"("quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true})",
        R"("quantization_config": {"quant_method": "gptq", "bits": 4})",
        R"("quantization_config": {"quant_method": "awq"})",
        R"("quantization_config": {"quant_method": "compressed-tensors"})",
        R"("quantization_config": {"quant_method": "torchao"})",
        R"("quantization_config": {"quant_method": "fp8"})",
        R"("quantization_config": {"group_size": 64, "bits": 4})",
        R"("quantization": {"group_size": 64, "bits": 4})",
        R"("text_config": {"quantization_config": {"quant_method": "mxfp4"}})"}) {
    write_text(directory_ / "config.json", R"({"model_type": "llama", )" + declared + "}");
    const ModelDirectory model = open();
    EXPECT_FALSE(model.quantised());
    ASSERT_EQ(model.notes().size(), 1u) << declared;
    expect_parts(model.notes().front(), {directory_ / "config.json", "quantization", "plain"});
    EXPECT_EQ(model.config_text().find("quantization"), std::string::npos);
    EXPECT_EQ(*model.companion_text("config.json"), model.config_text());
    EXPECT_EQ(Json::parse(model.config_text()), model.config());
  }
  // A buffer of integers is no packed matrix.
  std::filesystem::remove(directory_ / "model.safetensors");
  write_safetensors(directory_ / "model.safetensors", {kA, {"ids", TensorDType::kI64, {1, 3}}});
  EXPECT_FALSE(open().quantised());
}

// Weights in other formats are refused with the reason and the way to convert them.
TEST(ModelDirectory, RefusesOtherFormatsWithTheReasonAndTheWayToConvert) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"pytorch_model.bin", "pickle"},
      {"consolidated.00.pth", "pickle"},
      {"model-q4.gguf", "GGUF"},
      {"tf_model.h5", "layout that is not read"},
      {"consolidated.safetensors", "fetch the model*.safetensors"},
      {"model-00001-of-00002.safetensors", "fetch that index"},
      {"adapter_model.safetensors", "merge it into its base model"},
      {"tokenizer.json", "fetch the weights"}};
  for (const auto& [name, part] : cases) {
    const TemporaryDirectory directory;
    write_text(directory / "config.json", kConfig);
    write_text(directory / name, "x");
    const std::string error =
        error_of<ConfigError>([&] { ModelDirectory::open(directory.path()); });
    expect_parts(error, {directory.path(), "no model.safetensors", part});
    if (name != "tokenizer.json") expect_parts(error, {name});
    const ModelDirectory model =
        ModelDirectory::open(directory.path(), ModelDirectory::Weights::kOptional);
    EXPECT_TRUE(model.files().empty());
  }
}

// A damaged weight file is named.
TEST_F(SingleDirectory, NamesTheDamagedWeightFile) {
  write_text(directory_ / "model.safetensors", "garbage garbage");
  expect_parts(open_error<DataError>(), {directory_ / "model.safetensors", "header"});
}

// A pipe as weight file is refused at once.
TEST_F(SingleDirectory, RefusesWhatIsNoRegularFile) {
  std::filesystem::remove(directory_ / "model.safetensors");
  ASSERT_EQ(::mkfifo((directory_ / "model.safetensors").c_str(), 0600), 0);
  expect_parts(open_error<DataError>(), {directory_ / "model.safetensors", "not a regular file"});
  std::filesystem::remove(directory_ / "model.safetensors");
  std::filesystem::create_directory(directory_ / "model.safetensors");
  expect_parts(open_error<DataError>(), {directory_ / "model.safetensors", "not a regular file"});
}

// --- The index.

// Malformed indexes are refused.
TEST_F(IndexedDirectory, RefusesMalformedIndexes) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "not JSON"},
      {"[]", "not a JSON object"},
      {"{}", "weight_map is missing"},
      {R"({"weight_map": []})", "weight_map is missing"},
      {R"({"weight_map": {}})", "weight_map is missing"},
      {R"({"weight_map": {"a": 1}})", "tensor 'a': expected a file name, found number"},
      {R"({"weight_map": {"a": null}})", "tensor 'a': expected a file name, found null"},
      {R"({"weight_map": {"a": "x.safetensors", "a": "x.safetensors"}})", "occurs twice"},
      {R"({"weight_map": {"a": ["x.safetensors"]}})", "tensor 'a': expected a file name"}};
  for (const auto& [text, part] : cases) {
    write_index(text);
    expect_parts(open_error<DataError>(), {directory_ / "model.safetensors.index.json", part});
  }
}

// File names with folders, and hidden ones, are refused in an index.
TEST_F(IndexedDirectory, RefusesFileNamesThatAreNotPlain) {
  for (const char* name :
       {"../model-1.safetensors", "/etc/passwd", "./model-1.safetensors", "sub/model.safetensors",
        "..", "", ".hidden.safetensors", "a\\\\b.safetensors", "a\\nb.safetensors"}) {
    write_index(index_text(std::string(R"({"a": ")") + name + "\"}"));
    expect_parts(open_error<DataError>(), {directory_ / "model.safetensors.index.json",
                                           "tensor 'a'", "is not a plain file name"});
  }
  write_index(index_text(R"({"a": "pytorch_model.bin"})"));
  expect_parts(open_error<DataError>(), {"tensor 'a'", "is no .safetensors file"});
}

// A missing weight file is named with one of its tensors.
TEST_F(IndexedDirectory, NamesAMissingFile) {
  std::filesystem::remove(directory_ / "model-2.safetensors");
  expect_parts(open_error<DataError>(),
               {directory_ / "model-2.safetensors", "missing", "tensor 'c'", "fetch it"});
}

// A tensor that lies in another file than the index says is named with both files.
TEST_F(IndexedDirectory, NamesATensorThatIsInAnotherFile) {
  write_index(index_text(
      R"({"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"})"));
  EXPECT_EQ(
      open_error<DataError>(),
      directory_ / "model-1.safetensors holds tensor 'b' that " +
          directory_ /
              "model.safetensors.index.json places in model-2.safetensors; fetch the files again");
}

// Goal: a model whose index lists tensors that nobody needs and no file has is trained, and its
// export has an index without them.
TEST_F(IndexedDirectory, NotesTensorsThatAreNowhere) {
  write_index(index_text(R"({"a": "model-1.safetensors", "b": "model-1.safetensors",
                             "c": "model-2.safetensors", "d": "model-2.safetensors",
                             "e": "model-1.safetensors"})"));
  const ModelDirectory model = open();
  ASSERT_EQ(model.notes().size(), 1u);
  expect_parts(model.notes().front(),
               {"index.json: lists 2 tensors, 'd' first, of model-2", "fetch"});
  EXPECT_EQ(model.absent_note(), model.notes().front());
  EXPECT_TRUE(model.warnings().empty());
  const WeightIndex index = parse_weight_index(model.index_text(), "index");
  const std::map<std::string, std::vector<std::string>> expected = {
      {"model-1.safetensors", {"a", "b"}}, {"model-2.safetensors", {"c"}}};
  EXPECT_EQ(index.tensors_of_file, expected);
}

// A tensor that the index does not list is named.
TEST_F(IndexedDirectory, NamesATensorThatIsNotListed) {
  write_index(index_text(R"({"a": "model-1.safetensors", "c": "model-2.safetensors"})"));
  expect_parts(open_error<DataError>(), {"does not list", "'b'", "model-1.safetensors"});
}

// Stale copies of tensors are named in one line for each pair of files, with what other programs do
// and what to do.
TEST_F(IndexedDirectory, NamesCopiesOfTensorsInAnotherFile) {
  std::filesystem::remove(directory_ / "model-2.safetensors");
  write_safetensors(directory_ / "model-2.safetensors", {kC, kA, kB});
  const std::string error = open_error<DataError>();
  expect_parts(error, {directory_ / "model-2.safetensors holds 2 tensors, 'a' first,",
                       "places in model-1.safetensors", "transformers", "vLLM", "fetch"});
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
}

// All missing files of an index are reported together, up to a limit.
TEST_F(IndexedDirectory, ReportsAllProblemsAtOnceUpToALimit) {
  std::string map = "{";
  for (int i = 0; i < 100; ++i) {
    const std::string number = std::to_string(i);
    map += "\"t" + number + R"(": "file-)" + number + R"(.safetensors", )";
  }
  write_index(index_text(map + R"("c": "model-2.safetensors"})"));
  const std::string error = open_error<DataError>();
  expect_parts(error, {"tensor 't0'", "tensor 't1'", "and 80 more"});
}

// A model.safetensors that the index does not list is refused.
TEST_F(IndexedDirectory, RefusesAnIndexBesideAnUnlistedSingleFile) {
  write_safetensors(directory_ / "model.safetensors", {kA});
  expect_parts(open_error<DataError>(),
               {directory_ / "model.safetensors", "lists other files", "remove"});
}

// An index of the single file is accepted.
TEST_F(SingleDirectory, AcceptsAnIndexOfTheSingleFile) {
  const std::string file = "\"model.safetensors\"";
  write_text(directory_ / "model.safetensors.index.json",
             index_text(R"({"a": )" + file + R"(, "b": )" + file + R"(, "c": )" + file + "}"));
  EXPECT_EQ(open().tensors().size(), 3u);
}

// A wrong total_size gives a warning only, because some published models have one.
TEST_F(IndexedDirectory, WarnsOfAWrongTotalSize) {
  write_index(index_text(kGoodMap, "39"));
  const ModelDirectory model = open();
  ASSERT_EQ(model.warnings().size(), 1u);
  expect_parts(model.warnings().front(), {"index.json", "total_size is 39", "have 38 bytes"});
  for (const char* other : {"38.0", "\"38\"", "null", "-1", "1e300"}) {
    write_index(index_text(kGoodMap, other));
    EXPECT_TRUE(open().warnings().empty()) << other;
  }
}

// --- Links.

// Links of the Hugging Face cache are followed: snapshots/REVISION/NAME -> ../../blobs/DIGEST.
TEST_F(IndexedDirectory, FollowsLinksIntoTheCache) {
  const TemporaryDirectory cache;
  const std::string snapshot = cache / "snapshots/0123";
  std::filesystem::create_directories(snapshot);
  std::filesystem::create_directories(cache / "blobs");
  for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
    const std::string name = entry.path().filename();
    std::filesystem::rename(entry.path(), cache / ("blobs/blob-of-" + name));
    std::filesystem::create_symlink("../../blobs/blob-of-" + name, snapshot + "/" + name);
  }
  const ModelDirectory model = ModelDirectory::open(snapshot);
  EXPECT_EQ(model.tensors().size(), 3u);
  EXPECT_EQ(model.companion_files(), std::vector<std::string>{"config.json"});
}

// Absolute links to digests are followed.
TEST_F(IndexedDirectory, FollowsAbsoluteLinksToDigests) {
  const TemporaryDirectory cache;
  const std::string blob = cache / ("blobs/" + std::string(64, 'a'));
  std::filesystem::create_directories(cache / "blobs");
  std::filesystem::rename(directory_ / "model-2.safetensors", blob);
  std::filesystem::create_symlink(blob, directory_ / "model-2.safetensors");
  EXPECT_EQ(open().tensors().size(), 3u);
}

// Other links at names of an index are refused.
TEST_F(IndexedDirectory, RefusesOtherLinksBehindNamesOfTheIndex) {
  const TemporaryDirectory elsewhere;
  std::filesystem::rename(directory_ / "model-2.safetensors", elsewhere / "x.safetensors");
  for (const std::string& target :
       {elsewhere / "x.safetensors", std::string("../../blobs/../x"), std::string("blobs/x"),
        std::string("../../blobs/.."), std::string("/etc/passwd")}) {
    std::filesystem::remove(directory_ / "model-2.safetensors");
    std::filesystem::create_symlink(target, directory_ / "model-2.safetensors");
    expect_parts(open_error<DataError>(),
                 {directory_ / "model-2.safetensors", "a link to '" + target + "'"});
  }
}

// A link of the cache whose target leads out of it is refused.
TEST_F(IndexedDirectory, RefusesALinkInTheCacheThatLeadsOut) {
  const TemporaryDirectory cache;
  const std::string snapshot = cache / "snapshots/0123";
  std::filesystem::create_directories(cache / "snapshots");
  std::filesystem::create_directories(cache / "blobs");
  std::filesystem::copy(directory_.path(), snapshot);
  std::filesystem::remove(snapshot + "/model-2.safetensors");
  std::filesystem::create_symlink(directory_ / "model-2.safetensors", cache / "blobs/x");
  std::filesystem::create_symlink("../../blobs/x", snapshot + "/model-2.safetensors");
  const std::string error = error_of<IoError>([&] { ModelDirectory::open(snapshot); });
  expect_parts(error, {snapshot + "/model-2.safetensors"});
}

// Links at the fixed names config.json and model.safetensors are followed anywhere.
TEST_F(SingleDirectory, FollowsAnyLinkBehindNamesOfOurOwn) {
  const TemporaryDirectory elsewhere;
  for (const char* name : {"config.json", "model.safetensors"}) {
    std::filesystem::rename(directory_ / name, elsewhere / name);
    std::filesystem::create_symlink(elsewhere / name, directory_ / name);
  }
  EXPECT_EQ(open().tensors().size(), 3u);
}

// --- Files beside the weights.

// Companion files are listed without weights, hidden files and links that lead out.
TEST_F(SingleDirectory, ListsCompanionsButNoWeightsAndNothingHidden) {
  const TemporaryDirectory elsewhere;
  write_text(elsewhere / "secret", "x");
  for (const char* name :
       {"tokenizer.json", "LICENSE", "additional_chat_templates/tool.jinja", "pytorch_model.bin",
        "pytorch_model.bin.index.json", "model.gguf", "original/consolidated.00.pth",
        "onnx/model.onnx", ".gitattributes", ".cache/x", "notes with spaces.txt",
        "model.safetensors.index.json.bak", "model.safetensors.old", "trainer_state.json",
        "imatrix.dat", "params.json", "hf_quant_config.json"}) {
    write_text(directory_ / name, "x");
  }
  std::filesystem::create_symlink(elsewhere / "secret", directory_ / "innocent.txt");
  const ModelDirectory model = open();
  EXPECT_EQ(model.companion_files(),
            (std::vector<std::string>{"LICENSE", "additional_chat_templates/tool.jinja",
                                      "config.json", "notes with spaces.txt", "tokenizer.json"}));
  ASSERT_EQ(model.warnings().size(), 1u);
  expect_parts(model.warnings().front(), {"innocent.txt", "a link to", "leaves it out"});
}

}  // namespace
}  // namespace longshore
