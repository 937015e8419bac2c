//! What was drawn, in words: for tests that compare distributions and for people who wonder about a sample.

use serde_json::{Value, json};

use super::Rect;
use super::draw::{Drawn, Erasure, Plan};
use super::op::Op;
use super::pipeline::Pipeline;

impl Plan {
    /// One object per operation with its name under `"op"` and the parameters drawn for it, under torchvision's names.
    #[must_use]
    pub fn describe(&self, pipeline: &Pipeline) -> Value {
        let ops = pipeline.ops().iter().zip(&self.drawn);
        ops.map(|(op, drawn)| {
            let mut described = self.parameters(drawn);
            described["op"] = tag(op);
            described
        })
        .collect()
    }

    fn parameters(&self, drawn: &Drawn) -> Value {
        match drawn {
            Drawn::Nothing => json!({}),
            Drawn::Resize(to) => json!({"height": to.height, "width": to.width}),
            Drawn::Crop { padding, window } => {
                let mut described = rectangle(window);
                described["padding"] = json!(padding);
                described
            }
            Drawn::ResizedCrop { window, .. } => rectangle(window),
            Drawn::Applied(applied) => json!({"applied": applied}),
            Drawn::Jitter { order, factors: [brightness, contrast, saturation, hue] } => json!({
                "order": order, "brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue,
            }),
            Drawn::Blur { sigma } => json!({"sigma": sigma}),
            Drawn::Choices { first, count } => {
                let chosen = self.choices[*first..first + count].iter();
                json!({"chosen": chosen
                    .map(|choice| json!({"name": choice.kind.name(), "magnitude": choice.magnitude}))
                    .collect::<Value>()})
            }
            Drawn::Erase(None) => json!({"applied": false}),
            Drawn::Erase(Some(Erasure { rect, noise_seed })) => {
                let mut described = rectangle(rect);
                described["applied"] = json!(true);
                described["noise_seed"] = json!(noise_seed);
                described
            }
        }
    }
}

fn rectangle(rect: &Rect) -> Value {
    json!({"top": rect.y, "left": rect.x, "height": rect.height, "width": rect.width})
}

/// The name that the JSON form of an operation has.
fn tag(op: &Op) -> Value {
    serde_json::to_value(op).map_or(Value::Null, |value| value["op"].clone())
}
