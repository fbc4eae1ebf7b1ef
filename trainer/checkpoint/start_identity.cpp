#include "trainer/checkpoint/start_identity.h"

#include <filesystem>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "trainer/checkpoint/json_fields.h"

namespace longshore {
namespace {

constexpr JsonLimits kLimits{.max_bytes = 256 * kMiB, .max_depth = 4, .max_values = 8'000'000};

std::string path_in(const std::string& run_directory) {
  return run_directory + "/start.json";
}

}  // namespace

Json to_json(const StartIdentity& identity) {
  Json object = {{"model", identity.model}, {"frozen", identity.frozen}};
  if (!identity.values.empty()) object["values"] = identity.values;
  if (!identity.reference.empty()) object["reference"] = identity.reference;
  return object;
}

StartIdentity parse_start_identity(const Json& object, const std::string& where) {
  const auto check = [&where](bool valid) {
    if (!valid) throw CheckpointError(where + ": is not the identity of a model");
  };
  check(object.is_object());
  StartIdentity identity;
  for (const auto& [key, value] : object.items()) {
    if (key == "frozen") {
      check(value.is_object());
      for (const auto& [name, text] : value.items()) {
        check(text.is_string());
        identity.frozen.emplace(name, text.get<std::string>());
      }
    } else {
      check(value.is_string());
      if (key == "model") identity.model = value.get<std::string>();
      if (key == "values") identity.values = value.get<std::string>();
      if (key == "reference") identity.reference = value.get<std::string>();
    }
  }
  return identity;
}

StartIdentity read_start_identity(const std::string& run_directory) {
  const std::string path = path_in(run_directory);
  std::error_code ignored;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, ignored))) return {};
  const std::string help =
      "; remove the file to go on without a comparison of the frozen model's values";
  try {
    const Json object = parse_json(read_own_file(path, kLimits.max_bytes), kLimits, path);
    const JsonFields fields(object, path);
    const Json& identity = fields.member("identity");
    if (fields.hash("xxh3") != hash64(identity.dump())) fields.fail("has another checksum");
    return parse_start_identity(identity, path);
  } catch (const Error& error) {
    throw CheckpointError(error.what() + help);
  }
}

void write_start_identity(const std::string& run_directory, const StartIdentity& identity) {
  const Json object = to_json(identity);
  const Json file = {{"identity", object}, {"xxh3", hash_text(hash64(object.dump()))}};
  write_file_durably(path_in(run_directory), file.dump(1) + "\n");
}

}  // namespace longshore
