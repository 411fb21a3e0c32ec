//! `corelane topic create|list|describe|alter|delete|delete-records`.

use clap::{Args, Subcommand};
use corelane_client::{Client, ClientConfig, Offset, PartitionIndex, TopicDescription};
use serde_json::{Value, json};

use super::output::{print, size, table};
use super::{Failure, ServerArgs};

/// What can be done to topics.
#[derive(Debug, Subcommand)]
pub enum TopicCommand {
    /// Create a topic
    Create(CreateArgs),
    /// List all topics
    List(ServerArgs),
    /// Show a topic's settings and partitions
    Describe(NameArgs),
    /// Change a topic's settings; they are in force when it ends
    Alter(AlterArgs),
    /// Delete a topic and all its records
    Delete(NameArgs),
    /// Delete the oldest records of a topic, for ever
    DeleteRecords(DeleteRecordsArgs),
}

/// Arguments of `topic create`.
#[derive(Args, Debug)]
pub struct CreateArgs {
    /// Name: letters, digits, '.', '_' and '-'
    name: String,
    /// How many partitions it has
    #[arg(long, short, default_value_t = 1)]
    partitions: u32,
    /// A setting, like durability=written; repeatable
    #[arg(long = "config", short, value_name = "NAME=VALUE", value_parser = setting)]
    configs: Vec<(String, String)>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Arguments of `topic alter`.
#[derive(Args, Debug)]
pub struct AlterArgs {
    /// The topic's name
    name: String,
    /// A setting and its new value, like retention.ms=3600000; repeatable
    #[arg(long = "config", short, value_name = "NAME=VALUE", value_parser = setting)]
    configs: Vec<(String, String)>,
    /// A setting that goes back to its default; repeatable
    #[arg(long = "reset", short, value_name = "NAME", required_unless_present = "configs")]
    resets: Vec<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Arguments of `topic delete-records`.
#[derive(Args, Debug)]
pub struct DeleteRecordsArgs {
    /// The topic's name
    name: String,
    /// The first offset that stays, or "end": all that consumers see goes
    #[arg(long, value_name = "OFFSET|end", value_parser = before, allow_hyphen_values = true)]
    before: Before,
    /// Only in this partition; repeatable [default: all]
    #[arg(long = "partition", short, value_name = "N")]
    partitions: Vec<u32>,
    #[command(flatten)]
    server: ServerArgs,
}

/// The first offset that stays; none: the high watermark.
#[derive(Clone, Copy, Debug)]
struct Before(Option<Offset>);

/// Arguments that name a topic.
#[derive(Args, Debug)]
pub struct NameArgs {
    /// The topic's name
    name: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs a `topic` subcommand.
pub async fn run(command: TopicCommand) -> Result<(), Failure> {
    match command {
        TopicCommand::Create(args) => create(args).await,
        TopicCommand::List(server) => list(server).await,
        TopicCommand::Describe(args) => describe(args).await,
        TopicCommand::Alter(args) => alter(args).await,
        TopicCommand::Delete(args) => delete(args).await,
        TopicCommand::DeleteRecords(args) => delete_records(args).await,
    }
}

/// Connects as the command line does.
pub async fn connect(server: &ServerArgs) -> Result<Client, Failure> {
    let config = ClientConfig { client_id: "corelane-cli".into(), ..ClientConfig::default() };
    Ok(Client::connect(&server.server, config).await?)
}

fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err(format!("{text:?} is not NAME=VALUE")),
    }
}

fn before(text: &str) -> Result<Before, String> {
    match text {
        "end" => Ok(Before(None)),
        text => match text.parse() {
            Ok(offset) if offset >= 0 => Ok(Before(Some(Offset(offset)))),
            _ => Err(format!("{text:?} is neither an offset (0 or more) nor \"end\"")),
        },
    }
}

async fn create(args: CreateArgs) -> Result<(), Failure> {
    let client = connect(&args.server).await?;
    let configs: Vec<(&str, &str)> = args.configs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let id = client.create_topic(&args.name, args.partitions, &configs).await?;
    if args.server.json {
        return print(&json!({ "name": args.name, "topic_id": id.to_string(), "partitions": args.partitions }));
    }
    let s = if args.partitions == 1 { "" } else { "s" };
    print(&format_args!("created topic {} with {} partition{s}", args.name, args.partitions))
}

async fn list(server: ServerArgs) -> Result<(), Failure> {
    let client = connect(&server).await?;
    let topics = client.list_topics().await?;
    if server.json {
        let topics: Vec<Value> = topics.iter().map(summary_json).collect();
        return print(&json!({ "topics": topics }));
    }
    if topics.is_empty() {
        return print(&"no topics");
    }
    let mut rows = table(&["topic", "durability", "partitions", "records", "size"], 2);
    for topic in &topics {
        let (records, bytes) = totals(topic);
        let durability = topic.configs.iter().find(|(name, _)| name == "durability").map_or("device", |(_, value)| value);
        rows.add_row([&topic.name, durability, &topic.partitions.len().to_string(), &records.to_string(), &size(bytes)]);
    }
    print(&rows)
}

async fn describe(args: NameArgs) -> Result<(), Failure> {
    let client = connect(&args.server).await?;
    let topic = client.describe_topic(&args.name).await?;
    if args.server.json {
        let partitions: Vec<Value> = topic
            .partitions
            .iter()
            .map(|partition| {
                json!({
                    "partition": partition.index.0, "core": partition.core.0, "leader_epoch": partition.leader_epoch.0,
                    "log_start": partition.log_start.0, "high_watermark": partition.high_watermark.0,
                    "log_end": partition.log_end.0, "size_bytes": partition.size_bytes,
                })
            })
            .collect();
        let mut all = summary_json(&topic);
        all["partitions"] = partitions.into();
        return print(&all);
    }
    print(&format_args!("topic {}  id {}", topic.name, topic.topic_id))?;
    for (name, value) in &topic.configs {
        print(&format_args!("  {name}={value}"))?;
    }
    let header = ["partition", "core", "leader epoch", "log start", "high watermark", "log end", "size"];
    let mut rows = table(&header, 0);
    for partition in &topic.partitions {
        rows.add_row([
            partition.index.to_string(),
            partition.core.to_string(),
            partition.leader_epoch.to_string(),
            partition.log_start.to_string(),
            partition.high_watermark.to_string(),
            partition.log_end.to_string(),
            size(partition.size_bytes),
        ]);
    }
    print(&rows)
}

async fn alter(args: AlterArgs) -> Result<(), Failure> {
    let client = connect(&args.server).await?;
    let resets = args.resets.iter().map(|name| (name.as_str(), None));
    let sets = args.configs.iter().map(|(name, value)| (name.as_str(), Some(value.as_str())));
    let changes: Vec<_> = resets.chain(sets).collect();
    let id = client.alter_topic(&args.name, &changes).await?;
    if args.server.json {
        let changed: serde_json::Map<String, Value> =
            changes.iter().map(|(name, value)| ((*name).into(), json!(value))).collect();
        return print(&json!({ "name": args.name, "topic_id": id.to_string(), "changed": changed }));
    }
    print(&format_args!("altered topic {}", args.name))
}

async fn delete(args: NameArgs) -> Result<(), Failure> {
    let client = connect(&args.server).await?;
    let id = client.delete_topic(&args.name).await?;
    if args.server.json {
        return print(&json!({ "name": args.name, "topic_id": id.to_string(), "deleted": true }));
    }
    print(&format_args!("deleted topic {}", args.name))
}

async fn delete_records(args: DeleteRecordsArgs) -> Result<(), Failure> {
    let client = connect(&args.server).await?;
    let partitions = if args.partitions.is_empty() {
        let topic = client.describe_topic(&args.name).await?;
        topic.partitions.iter().map(|partition| partition.index).collect()
    } else {
        args.partitions.iter().map(|index| PartitionIndex(*index)).collect::<Vec<_>>()
    };
    let before: Vec<_> = partitions.iter().map(|partition| (*partition, args.before.0)).collect();
    let begins = client.delete_records(&args.name, &before).await?;
    if args.server.json {
        let begins = partitions.iter().zip(&begins);
        let begins: Vec<Value> =
            begins.map(|(partition, start)| json!({ "partition": partition.0, "log_start": start.0 })).collect();
        return print(&json!({ "name": args.name, "partitions": begins }));
    }
    let mut rows = table(&["partition", "log start"], 0);
    for (partition, start) in partitions.iter().zip(&begins) {
        rows.add_row([partition.to_string(), start.to_string()]);
    }
    print(&rows)
}

fn totals(topic: &TopicDescription) -> (i64, u64) {
    let records = topic.partitions.iter().map(|partition| partition.high_watermark.0 - partition.log_start.0).sum();
    (records, topic.partitions.iter().map(|partition| partition.size_bytes).sum())
}

fn summary_json(topic: &TopicDescription) -> Value {
    let (records, bytes) = totals(topic);
    let configs: serde_json::Map<String, Value> =
        topic.configs.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
    json!({
        "name": topic.name, "topic_id": topic.topic_id.to_string(), "configs": configs,
        "partitions": topic.partitions.len(), "records": records, "size_bytes": bytes,
    })
}
