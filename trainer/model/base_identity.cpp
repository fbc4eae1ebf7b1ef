#include "trainer/model/base_identity.h"

#include <set>
#include <string_view>

#include "base/errors.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/texts.h"
#include "hf/directory_entry.h"
#include "trainer/checkpoint/json_fields.h"
#include "trainer/model/frozen_check.h"
#include "trainer/model/model_source.h"

namespace longshore {
namespace {

constexpr JsonLimits kLimits{.max_bytes = 256 * kMiB, .max_depth = 4, .max_values = 8'000'000};

// Returns one hash of all tensors, by which people can compare two models.
std::string hash_of(const std::map<std::string, std::string>& tensors) {
  Hasher all;
  for (const auto& [name, text] : tensors) all.update(name + " " + text + "\n");
  return hash_text(all.digest());
}

BaseIdentity parse_identity(const Json& object, const std::string& where) {
  const JsonFields fields(object, where);
  BaseIdentity identity{.base = fields.text("base"), .vocabulary = fields.count("vocabulary")};
  const Json& tensors = fields.member("tensors");
  if (!tensors.is_object() || tensors.empty()) fields.fail("\"tensors\" lists no tensors");
  for (const auto& [name, text] : tensors.items()) {
    if (!text.is_string()) fields.fail("\"tensors\" has a value that is no text");
    identity.tensors.emplace(name, text.get<std::string>());
  }
  return identity;
}

// Returns type and shape, "BF16 [2, 3]", of the text of a tensor, which its sum ends.
std::string_view form_of(std::string_view text) {
  return text.substr(0, text.rfind(' '));
}

// Returns an untrusted name; paths may be long.
std::string quoted(const std::string& name) {
  constexpr size_t kMostBytes = 400;
  return "'" + printable(name, kMostBytes) + "'";
}

const BaseIdentity& made_over(const ModelSource& source) {
  return *source.adapter()->made_over();
}

// Returns what the tensors of the model's files lack to be those of `expected`; empty if names,
// types and shapes are equal.
std::string other_form(const ModelSource& source, const BaseIdentity& expected) {
  const int64_t rows = source.arch().vocabulary - source.arch().added_tokens;
  if (rows != expected.vocabulary) {
    return "its vocabulary has " + std::to_string(rows) + " tokens, not " +
           std::to_string(expected.vocabulary);
  }
  if (source.base().random()) return "model.init = \"random\" gives it other values";
  if (!source.base().has_weights()) return {};
  std::set<std::string> found;
  for (const StoredTensor& stored : source.stored_tensors()) {
    if (!stored.frozen) continue;
    const auto same = expected.tensors.find(stored.name);
    if (same == expected.tensors.end()) return "it has a tensor " + quoted(stored.name) + " more";
    const std::string form = described_form(*stored.tensor);
    if (form != form_of(same->second)) {
      return "its tensor " + quoted(stored.name) + " is " + form + ", not " +
             printable(form_of(same->second));
    }
    found.insert(stored.name);
  }
  for (const auto& [name, text] : expected.tensors) {
    if (!found.contains(name)) return "it has no tensor " + quoted(name);
  }
  return {};
}

std::string refusal(const ModelSource& source, const std::string& difference) {
  const std::string& own = source.adapter()->settings().base;
  return source.adapter()->path() + ": this adapter was trained over " +
         quoted(made_over(source).base) + ", and model.path = " + quoted(own) +
         " is another model: " + difference +
         "; set model.path to the model of the adapter, or take this one all the same with "
         "--any-base";
}

}  // namespace

std::string base_identity_text(const BaseIdentity& identity) {
  const Json object = {{"base", identity.base},
                       {"vocabulary", identity.vocabulary},
                       {"longshore", LONGSHORE_VERSION},
                       {"values", hash_of(identity.tensors)},
                       {"tensors", identity.tensors}};
  const Json file = {
      {"about", "the model that these weights were trained over; Longshore alone reads this file"},
      {"identity", object},
      {"xxh3", hash_text(hash64(json_text(object)))}};
  return json_text(file, 1) + "\n";
}

std::optional<BaseIdentity> read_base_identity(const std::string& directory) {
  const UniqueFd fd = open_directory(directory);
  if (!entry_exists(fd, kBaseIdentityName)) return std::nullopt;
  const std::string path = directory + "/" + kBaseIdentityName;
  try {
    const UniqueFd file = open_entry(fd, kBaseIdentityName, Links::kAny);
    const Json object = parse_json(read_text(file, kLimits.max_bytes), kLimits, path);
    const JsonFields fields(object, path);
    const Json& identity = fields.member("identity");
    if (fields.hash("xxh3") != hash64(json_text(identity))) fields.fail("has another checksum");
    return parse_identity(identity, path);
  } catch (const Error& error) {
    throw DataError(std::string(error.what()) +
                    "; fetch or export the adapter again, or remove the file to take the adapter "
                    "without a comparison of its model");
  }
}

std::optional<BaseIdentity> identity_of_base(const ModelSource& source,
                                             const StartIdentity& start) {
  BaseIdentity identity{.base = source.adapter()->settings().base,
                        .vocabulary = source.arch().vocabulary - source.arch().added_tokens};
  for (const StoredTensor& stored : source.stored_tensors()) {
    if (!stored.frozen) continue;
    const auto found = start.frozen.find(stored.name);
    if (found == start.frozen.end()) return std::nullopt;
    identity.tensors.insert(*found);
  }
  if (identity.tensors.empty()) return std::nullopt;
  return identity;
}

bool compares_base(const ModelSource& source) {
  const AdapterFiles* const adapter = source.adapter();
  return adapter != nullptr && adapter->made_over() && !adapter->any_base();
}

void check_base_form(const ModelSource& source) {
  if (!compares_base(source)) return;
  const std::string difference = other_form(source, made_over(source));
  if (!difference.empty()) throw ConfigError(refusal(source, difference));
}

std::string base_difference(const ModelSource& source, const StartIdentity& found) {
  if (!compares_base(source)) return {};
  const std::string difference = other_values(made_over(source).tensors, found, source);
  return difference.empty() ? difference : refusal(source, difference);
}

std::string base_note(const ModelSource& source) {
  const AdapterFiles* const adapter = source.adapter();
  if (adapter == nullptr || adapter->directory() == nullptr || compares_base(source)) return {};
  const std::string model = quoted(adapter->settings().base);
  if (!adapter->made_over()) {
    return adapter->path() + ": has no " + kBaseIdentityName + ", so model.path = " + model +
           " was not compared with the model it was trained over";
  }
  return adapter->path() + ": this adapter was trained over " + quoted(made_over(source).base) +
         "; adapter.any_base takes it over " + model + " without a comparison";
}

}  // namespace longshore
