#include "offload/forecast/rates_text.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "offload/forecast/rate_fields.h"
#include "shard/state_format.h"

namespace longshore {
namespace {

using Json = nlohmann::ordered_json;

std::string amount(double value, const char* unit) {
  char text[48];
  std::snprintf(text, sizeof text, "%.3g %s", value, unit);
  return text;
}

std::string bytes_text(double rate) {
  return amount(rate / kGiga, "GB/s");
}

std::string flops_text(double rate) {
  return rate < 1e12 ? amount(rate / kGiga, "GFLOP/s") : amount(rate / 1e12, "TFLOP/s");
}

void line(std::string& text, const std::string& name, double rate, double both = 0.0) {
  if (rate <= 0.0) return;
  text += "  " + name + ": " + bytes_text(rate);
  if (both > 0.0) text += ", " + bytes_text(both) + " with the other way busy too";
  text += "\n";
}

void collective_line(std::string& text, const std::string& name, const CollectiveRate& rate) {
  if (rate.bytes <= 0.0) return;
  text += "  " + name + ": " + bytes_text(rate.bytes);
  if (rate.start_seconds > 0.0) text += ", " + amount(rate.start_seconds / kMicro, "us") + " each";
  text += "\n";
}

std::string name_of_dtype(DType dtype) {
  return dtype == DType::kBF16 ? "bf16" : "fp32";
}

std::string compute_line(const ComputeRates& rates) {
  std::string text =
      "  " + std::string(name_of(rates.device)) + ", " + name_of_dtype(rates.dtype) + ": ";
  for (size_t i = 0; i < rates.products.size(); ++i) {
    const ProductRate& product = rates.products[i];
    text += (i > 0 ? ", " : "") + flops_text(product.flops) + " (width " +
            std::to_string(static_cast<int64_t>(product.width)) + ")";
  }
  return text + (rates.attention > 0.0 ? "; attention " + flops_text(rates.attention) : "") + "\n";
}

Json value_or_null(double value) {
  return value > 0.0 ? Json(value) : Json(nullptr);
}

template <typename Rates, typename Fields>
void put_fields(Json& json, const Fields& fields, const Rates& rates) {
  for (const RateField<Rates>& field : fields) {
    json[field.name] = value_or_null(rates.*field.member);
  }
}

Json to_json(const CollectiveRate& rate) {
  return {{"bytes", value_or_null(rate.bytes)},
          {"start_seconds", rate.start_seconds},
          {"start_core_seconds", rate.start_core_seconds},
          {"core_share", rate.core_share}};
}

}  // namespace

std::string format_rates(const MachineRates& rates) {
  if (!rates.known()) return "rates: not known\n";
  std::string text = "rates (" + rates.source + ")\n";
  line(text, "copies in memory", rates.copy);
  line(text, "memory, read and written", rates.dram);
  line(text, "memory made ready", rates.pin);
  line(text, "host to device", rates.link.to_device, rates.link.to_device_both);
  line(text, "device to host", rates.link.to_host, rates.link.to_host_both);
  for (const UpdateRate& update : rates.updates) {
    line(text, "update, " + std::string(name_of(update.format)), update.bytes);
  }
  line(text, "models and checkpoints, read", rates.files_read);
  line(text, "models and checkpoints, written", rates.files_written);
  for (const DriveRates& drive : rates.drives) {
    line(text, drive.directory + ", read", drive.read, drive.read_both);
    line(text, drive.directory + ", written", drive.written, drive.written_both);
  }
  for (const GroupRates& group : rates.groups) {
    const std::string ranks =
        std::to_string(group.ranks) + " ranks (" + std::string(name_of(group.device)) + "), ";
    collective_line(text, ranks + "gather", group.gather);
    collective_line(text, ranks + "reduce-scatter", group.reduce_scatter);
    collective_line(text, ranks + "all-reduce", group.all_reduce);
  }
  for (const ComputeRates& compute : rates.compute) text += compute_line(compute);
  return text;
}

Json rates_to_json(const MachineRates& rates) {
  Json json = {{"source", rates.source}};
  put_fields(json, kMachineFields, rates);
  put_fields(json, kLinkFields, rates.link);
  json["updates"] = Json::array();
  for (const UpdateRate& update : rates.updates) {
    put_fields(json["updates"].emplace_back(Json::object({{"format", name_of(update.format)}})),
               kUpdateFields, update);
  }
  json["drives"] = Json::array();
  for (const DriveRates& drive : rates.drives) {
    put_fields(json["drives"].emplace_back(Json::object({{"directory", drive.directory}})),
               kDriveFields, drive);
  }
  json["groups"] = Json::array();
  for (const GroupRates& group : rates.groups) {
    Json& entry = json["groups"].emplace_back(
        Json{{"device", name_of(group.device)}, {"ranks", group.ranks}});
    for (const CollectiveField& field : kCollectiveFields) {
      entry[field.key] = to_json(group.*field.member);
    }
  }
  json["compute"] = Json::array();
  for (const ComputeRates& compute : rates.compute) {
    Json& entry = json["compute"].emplace_back(
        Json{{"device", name_of(compute.device)}, {"dtype", name_of_dtype(compute.dtype)}});
    put_fields(entry, kComputeFields, compute);
    entry["products"] = Json::array();
    for (const ProductRate& product : compute.products) {
      put_fields(entry["products"].emplace_back(Json::object()), kProductFields, product);
    }
  }
  return json;
}

}  // namespace longshore
