import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.core.exception.SdkException;
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.http.apache.ApacheHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.model.Delete;
import software.amazon.awssdk.services.s3.model.NoSuchKeyException;
import software.amazon.awssdk.services.s3.model.ObjectIdentifier;

/**
 * Kafka's remote tier on an S3 server, for the bench: a segment and each of its indexes is one object. The SDK's own
 * defaults apply to retries, checksums and signatures. Settings: `endpoint`, `bucket`, `access.key`, `secret.key`.
 */
public final class S3RemoteStorage implements RemoteStorageManager {
    private static final List<String> KINDS = List.of("log", "index", "timeindex", "txnindex", "snapshot", "epochs");

    private S3Client client;
    private String bucket;

    @Override
    public void configure(Map<String, ?> settings) {
        bucket = settings.get("bucket").toString();
        AwsBasicCredentials credentials =
                AwsBasicCredentials.create(settings.get("access.key").toString(), settings.get("secret.key").toString());
        client = S3Client.builder()
                .endpointOverride(URI.create(settings.get("endpoint").toString()))
                .region(Region.US_EAST_1)
                .credentialsProvider(StaticCredentialsProvider.create(credentials))
                .httpClientBuilder(ApacheHttpClient.builder().maxConnections(64))
                .forcePathStyle(true)
                .build();
    }

    private static String key(RemoteLogSegmentMetadata segment, String kind) {
        return "kafka/" + segment.topicIdPartition() + "/" + segment.remoteLogSegmentId().id() + "." + kind;
    }

    private void put(RemoteLogSegmentMetadata segment, String kind, RequestBody body) {
        client.putObject(request -> request.bucket(bucket).key(key(segment, kind)), body);
    }

    @Override
    public Optional<CustomMetadata> copyLogSegmentData(RemoteLogSegmentMetadata segment, LogSegmentData data)
            throws RemoteStorageException {
        try {
            put(segment, "log", RequestBody.fromFile(data.logSegment()));
            put(segment, "index", RequestBody.fromFile(data.offsetIndex()));
            put(segment, "timeindex", RequestBody.fromFile(data.timeIndex()));
            Optional<Path> transactions = data.transactionIndex();
            if (transactions.isPresent()) {
                put(segment, "txnindex", RequestBody.fromFile(transactions.get()));
            }
            put(segment, "snapshot", RequestBody.fromFile(data.producerSnapshotIndex()));
            ByteBuffer epochs = data.leaderEpochIndex().duplicate();
            put(segment, "epochs", RequestBody.fromRemainingByteBuffer(epochs));
        } catch (SdkException error) {
            throw new RemoteStorageException("cannot copy " + segment, error);
        }
        return Optional.empty();
    }

    private InputStream get(RemoteLogSegmentMetadata segment, String kind, String range) throws RemoteStorageException {
        try {
            return client.getObject(request -> request.bucket(bucket).key(key(segment, kind)).range(range));
        } catch (NoSuchKeyException missing) {
            throw new RemoteResourceNotFoundException("no " + kind + " of " + segment, missing);
        } catch (SdkException error) {
            throw new RemoteStorageException("cannot read " + kind + " of " + segment, error);
        }
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start) throws RemoteStorageException {
        return get(segment, "log", "bytes=" + start + "-");
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start, int end)
            throws RemoteStorageException {
        return get(segment, "log", "bytes=" + start + "-" + end);
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata segment, IndexType kind) throws RemoteStorageException {
        return get(segment, switch (kind) {
            case OFFSET -> "index";
            case TIMESTAMP -> "timeindex";
            case TRANSACTION -> "txnindex";
            case PRODUCER_SNAPSHOT -> "snapshot";
            case LEADER_EPOCH -> "epochs";
        }, null);
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata segment) throws RemoteStorageException {
        List<ObjectIdentifier> keys = KINDS.stream()
                .map(kind -> ObjectIdentifier.builder().key(key(segment, kind)).build())
                .toList();
        try {
            client.deleteObjects(request -> request.bucket(bucket).delete(Delete.builder().objects(keys).build()));
        } catch (SdkException error) {
            throw new RemoteStorageException("cannot delete " + segment, error);
        }
    }

    @Override
    public void close() throws IOException {
        if (client != null) {
            client.close();
        }
    }
}
