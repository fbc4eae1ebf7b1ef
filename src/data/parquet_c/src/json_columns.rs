//! Finds the columns that hold JSON as text, at any depth of the schema.

use parquet::basic::{ConvertedType, LogicalType, Repetition};
use parquet::file::metadata::FileMetaData;
use parquet::schema::types::Type;
use serde_json::Value;

/// The key under which the library `datasets` keeps the types of the columns.
const FEATURES_KEY: &str = "huggingface";

/// Says where a value, or a part of it, is JSON as text.
pub enum Shape {
    Plain,
    Json,
    List(Box<Shape>),
    Members(Vec<(String, Shape)>),
}

impl Shape {
    /// Reads the schema, and the types that `datasets` wrote beside it: its `Json()` columns have
    /// the logical type JSON, which a program that rewrites the file may have dropped.
    pub fn of_file(file: &FileMetaData) -> Shape {
        let features = features_of(file).unwrap_or(Value::Null);
        of_group(file.schema(), &features)
    }

    pub fn member(&self, name: &str) -> &Shape {
        match self {
            Shape::Members(members) => members
                .iter()
                .find(|(member, _)| member == name)
                .map_or(&Shape::Plain, |(_, shape)| shape),
            _ => &Shape::Plain,
        }
    }

    pub fn element(&self) -> &Shape {
        match self {
            Shape::List(element) => element,
            _ => &Shape::Plain,
        }
    }
}

fn features_of(file: &FileMetaData) -> Option<Value> {
    let pairs = file.key_value_metadata()?;
    let text = pairs.iter().find(|pair| pair.key == FEATURES_KEY)?;
    let value: Value = serde_json::from_str(text.value.as_ref()?).ok()?;
    Some(value.get("info")?.get("features")?.clone())
}

/// Returns the type of a member; a sequence of objects is also written as an object of sequences.
fn feature_of<'a>(features: &'a Value, name: &str) -> &'a Value {
    features.get(name).unwrap_or(&Value::Null)
}

fn of_group(group: &Type, features: &Value) -> Shape {
    Shape::Members(
        group
            .get_fields()
            .iter()
            .map(|field| {
                let feature = feature_of(features, field.name());
                (field.name().to_string(), of_field(field, feature))
            })
            .collect(),
    )
}

fn of_field(field: &Type, feature: &Value) -> Shape {
    // A repeated field without the annotation of a list is one, too.
    let info = field.get_basic_info();
    if info.has_repetition() && info.repetition() == Repetition::REPEATED {
        return Shape::List(Box::new(of_value(field, element_feature(feature))));
    }
    of_value(field, feature)
}

fn of_value(field: &Type, feature: &Value) -> Shape {
    let info = field.get_basic_info();
    if field.is_primitive() {
        let marked = info.converted_type() == ConvertedType::JSON
            || info.logical_type() == Some(LogicalType::Json)
            || feature.get("_type").and_then(Value::as_str) == Some("Json");
        return if marked { Shape::Json } else { Shape::Plain };
    }
    match info.converted_type() {
        ConvertedType::LIST => match field.get_fields() {
            [repeated] => {
                let element = element_of(field.name(), repeated);
                Shape::List(Box::new(of_value(element, element_feature(feature))))
            }
            _ => Shape::Plain,
        },
        ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE => Shape::Plain,
        _ => of_group(field, feature),
    }
}

/// Returns the element of a list, by the rules of the format for older writers.
fn element_of<'a>(list: &str, repeated: &'a Type) -> &'a Type {
    let itself = repeated.is_primitive()
        || repeated.get_fields().len() != 1
        || repeated.name() == "array"
        || repeated.name() == format!("{list}_tuple");
    if itself {
        repeated
    } else {
        &repeated.get_fields()[0]
    }
}

fn element_feature(feature: &Value) -> &Value {
    match feature {
        Value::Array(of_one) => of_one.first().unwrap_or(&Value::Null),
        _ => feature.get("feature").unwrap_or(&Value::Null),
    }
}
