"""Writes and reads TFRecord files with TensorFlow's own code; run by the Python of playbooks/tensorflow.sh.

write FOLDER  images and odd features as TensorFlow writes them, and files in both of its compressed forms in the folder
              `compressed`; prints what the images hold as JSON
read FOLDER   what is in every *.tfrecord file of a folder, as JSON
"""

import hashlib
import json
import os
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf

SHARDS, RECORDS = 3, 7


def feature(values: list) -> tf.train.Feature:
    if isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0], int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def write(folder: Path) -> list[dict]:
    told = []
    for shard in range(SHARDS):
        name = f"train.tfrecord-{shard:05d}-of-{SHARDS:05d}"
        with tf.io.TFRecordWriter(str(folder / name)) as writer:
            for record in range(RECORDS):
                pixels = tf.random.stateless_uniform((24, 32, 3), (shard, record), 0, 256, tf.int32)
                image = tf.io.encode_jpeg(tf.cast(pixels, tf.uint8)).numpy()
                label = shard * 10 - record
                example = tf.train.Example(
                    features=tf.train.Features(
                        feature={
                            "image/encoded": feature([image]),
                            "image/class/label": feature([label]),
                            "image/object/bbox/xmin": feature([0.25, 0.5]),
                            "image/object/class/text": feature([b"dog", b"cat"]),
                            "image/format": feature([b"jpeg"]),
                        }
                    )
                )
                writer.write(example.SerializeToString())
                told.append({"shard": name, "label": label, "image": hashlib.sha256(image).hexdigest()})
    compress(folder / "compressed")
    return told


def compress(folder: Path) -> None:
    folder.mkdir()
    for kind in ("GZIP", "ZLIB"):
        with tf.io.TFRecordWriter(str(folder / f"{kind}.tfrecord"), kind) as writer:
            writer.write(b"payload")


def told_value(values: list) -> list:
    """Bytes as their length and hash, so that JSON can hold them."""
    return [[len(v), hashlib.sha256(v).hexdigest()] if isinstance(v, bytes) else v for v in values]


def read(folder: Path) -> list[dict]:
    found = []
    for record in tf.data.TFRecordDataset(sorted(map(str, folder.glob("*.tfrecord")))):
        example = tf.train.Example.FromString(record.numpy())
        told = {}
        for name, held in example.features.feature.items():
            kind = held.WhichOneof("kind")
            told[name] = told_value(list(getattr(held, kind).value)) if kind else []
        found.append(told)
        parse(record, told)
    return found


def parse(record: tf.Tensor, told: dict) -> None:
    """Have the parser of training pipelines read it too, which is other code than protobuf's."""
    if "image/encoded" in told:
        wanted = {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        }
        parsed = tf.io.parse_single_example(record, wanted)
        told["decoded shape"] = tf.io.decode_jpeg(parsed["image/encoded"]).shape.as_list()
        told["parsed label"] = int(parsed["image/class/label"])


if __name__ == "__main__":
    command, where = sys.argv[1:]
    json.dump({"write": write, "read": read}[command](Path(where)), sys.stdout)
